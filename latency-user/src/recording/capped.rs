//! Reading lists of a bounded length: a damaged or hostile file must not make us allocate.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// Deserializes a list of at most `MAX` elements; a longer one is an error.
pub(super) fn vec<'de, const MAX: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_seq(Capped::<MAX, T>(PhantomData))
}

struct Capped<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for Capped<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            if elements.len() == MAX {
                return Err(A::Error::custom(format_args!("a list has more than {MAX} elements")));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    /// Check that a list of the longest allowed length is read, and a longer one is not.
    #[test]
    fn cap() {
        let read = |json: &str| {
            super::vec::<2, u8, _>(&mut serde_json::Deserializer::from_str(json))
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("[1,2]"), Ok(vec![1, 2]));
        assert!(read("[1,2,3]").unwrap_err().contains("more than 2 elements"));
    }
}
