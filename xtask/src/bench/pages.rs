//! The markdown page of all benches: a run of some of them replaces their sections and keeps the others.

/// A section: the bench's name, and its text from the heading on.
pub struct Section {
    /// As on the command line.
    pub name: String,
    /// The heading and what is below it.
    pub text: String,
}

/// The page: `head`, and the sections, in the order of `names`. Sections of `old` that were not measured
/// now are kept if they are of the same machine, whose line both heads have.
pub fn merged(old: &str, head: &str, machine: &str, new: Vec<Section>, names: &[String]) -> String {
    let mut sections = new;
    if old.lines().any(|line| line == machine) {
        for section in sections_of(old) {
            if names.contains(&section.name) && sections.iter().all(|it| it.name != section.name) {
                sections.push(section);
            }
        }
    }
    sections.sort_by_key(|section| names.iter().position(|name| *name == section.name));
    let mut page = head.to_owned();
    for section in sections {
        page.push('\n');
        page.push_str(section.text.trim_end());
        page.push('\n');
    }
    page
}

fn sections_of(page: &str) -> Vec<Section> {
    const HEADING: &str = "\n## ";
    let parts = page.split(HEADING).skip(1);
    let section = |part: &str| {
        let name = part.split([':', '\n']).next().unwrap_or_default().to_owned();
        Section { name, text: format!("{}{part}", HEADING.trim_start()) }
    };
    parts.map(section).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(name: &str, text: &str) -> Section {
        Section { name: name.into(), text: format!("## {name}: {text}\n\nrow\n") }
    }

    /// Check that what was measured replaces its section, the rest stays, and the order is the benches'.
    #[test]
    fn replaces() {
        let names = ["a", "b", "c"].map(String::from);
        let old = merged("", "# P\n\nM\n", "M", vec![section("a", "1"), section("b", "1")], &names);
        assert_eq!(old, "# P\n\nM\n\n## a: 1\n\nrow\n\n## b: 1\n\nrow\n");
        let new =
            merged(&old, "# P\n\nM\n", "M", vec![section("c", "2"), section("a", "2")], &names);
        assert_eq!(new, "# P\n\nM\n\n## a: 2\n\nrow\n\n## b: 1\n\nrow\n\n## c: 2\n\nrow\n");
    }

    /// Check that nothing is kept of another machine, nor of a bench that is no more.
    #[test]
    fn drops() {
        let old = "# P\n\nM\n\n## a: 1\n\n## gone: 1\n";
        let names = ["a", "b"].map(String::from);
        let page = merged(old, "# P\n\nN\n", "N", vec![section("b", "2")], &names);
        assert!(!page.contains("## a") && page.contains("## b"), "{page}");
        let page = merged(old, "# P\n\nM\n", "M", vec![section("b", "2")], &names);
        assert!(page.contains("## a") && !page.contains("gone"), "{page}");
    }
}
