//! Keyed 64-bit hashes of document ids: the order of shuffles, samples and held-out sets.

use std::collections::HashSet;

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// One key per id; equal ids get equal keys, and another seed gives independent keys.
pub fn keys(ids: &[&str], seed: u64) -> Vec<u64> {
    ids.iter().map(|id| xxh3_64_with_seed(id.as_bytes(), seed)).collect()
}

/// The id of a document that came without one: 32 hex digits over its source, its place in the
/// source (a relative path, or empty) and its text. The parts are framed by their lengths, so no
/// two different triples are hashed as the same bytes.
pub fn document_id(source: &str, place: &str, text: &str) -> String {
    let mut bytes = Vec::with_capacity(source.len() + place.len() + text.len() + 16);
    for part in [source, place] {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes.extend_from_slice(text.as_bytes());
    format!("{:032x}", xxh3_128(&bytes))
}

/// The ids seen so far, as 64-bit hashes: two different ids are taken for one with a probability
/// of about n^2 / 2^65, which costs nothing but a longer id.
#[derive(Default)]
pub struct Seen(HashSet<u64>);

impl Seen {
    /// The new id of each row whose id was seen before, `id#2`, `id#3` and so on; `None` where the
    /// id is new.
    pub fn renamed(&mut self, ids: &[&str]) -> Vec<Option<String>> {
        ids.iter()
            .map(|id| {
                if self.0.insert(xxh3_64_with_seed(id.as_bytes(), 0)) {
                    return None;
                }
                (2u64..)
                    .map(|count| format!("{id}#{count}"))
                    .find(|name| self.0.insert(xxh3_64_with_seed(name.as_bytes(), 0)))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_id_depends_on_each_part_and_on_where_it_ends() {
        let id = super::document_id("web", "a", "text");
        assert_eq!(id, super::document_id("web", "a", "text"));
        for other in [("we", "ba", "text"), ("web", "at", "ext"), ("web", "a", "text ")] {
            assert_ne!(id, super::document_id(other.0, other.1, other.2));
        }
        assert_eq!(id.len(), 32);
    }

    #[test]
    fn repeated_ids_get_names_that_nobody_has() {
        let mut seen = super::Seen::default();
        assert_eq!(seen.renamed(&["a", "a#2", "b"]), [None, None, None]);
        let names = seen.renamed(&["a", "a", "c"]);
        assert_eq!(names, [Some("a#3".into()), Some("a#4".into()), None]);
    }

    #[test]
    fn keys_follow_the_seed() {
        assert_eq!(super::keys(&["a", "b", "a"], 1)[0], super::keys(&["a"], 1)[0]);
        assert_ne!(super::keys(&["a"], 1), super::keys(&["a"], 2));
    }
}
