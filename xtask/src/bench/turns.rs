//! Who is measured after whom.

/// What a round measures, in its order: there in one round and back in the next, since who comes first is
/// not always to be the same.
pub fn there_and_back<T>(round: usize, items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut order: Vec<T> = items.into_iter().collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that every second round goes back.
    #[test]
    fn rounds() {
        let orders = (0..3).map(|round| there_and_back(round, 1..=3));
        assert_eq!(orders.collect::<Vec<_>>(), [[1, 2, 3], [3, 2, 1], [1, 2, 3]]);
    }
}
