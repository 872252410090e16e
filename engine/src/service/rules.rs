//! Who may read what: pure.

use std::sync::Arc;

/// A uid or group may read what begins with a prefix in a bucket.
///
/// The service's own uid reads everything; any other reads nothing until a rule says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Who.
    pub who: Who,
    /// Of which endpoint, by its name; `None`: of all.
    pub endpoint: Option<String>,
    /// Of which bucket.
    pub bucket: String,
    /// Keys that begin with this; empty: all.
    pub prefix: String,
}

/// Whom a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A user.
    Uid(u32),
    /// Everybody of a group.
    Gid(u32),
}

/// What one client may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    All,
    /// Of these buckets, what begins with these prefixes.
    Only(Arc<[(String, String)]>),
}

impl Access {
    /// What rules give to a user of these groups on an endpoint.
    pub(crate) fn of(rules: &[Rule], endpoint: &str, uid: u32, groups: &[u32]) -> Access {
        let is_for = |rule: &&Rule| {
            let them = match rule.who {
                Who::Uid(of) => of == uid,
                Who::Gid(of) => groups.contains(&of),
            };
            them && rule.endpoint.as_deref().is_none_or(|of| of == endpoint)
        };
        let granted = rules.iter().filter(is_for);
        Access::Only(
            granted
                .map(|rule| (rule.bucket.clone(), rule.prefix.clone()))
                .collect(),
        )
    }

    /// Whether an object may be read.
    pub(crate) fn allows(&self, bucket: &str, key: &str) -> bool {
        match self {
            Access::All => true,
            Access::Only(granted) => granted.iter().any(|(of, prefix)| {
                let inside = prefix.is_empty() || !climbs(key);
                of == bucket && key.starts_with(&**prefix) && inside
            }),
        }
    }

    /// Whether names that begin so may be listed.
    pub(crate) fn allows_list(&self, bucket: &str, prefix: &str) -> bool {
        self.allows(bucket, prefix)
    }
}

/// Whether a server that takes keys for paths could be led out of a prefix by this one.
pub(crate) fn climbs(key: &str) -> bool {
    key.split('/').any(|part| part == ".." || part == ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(who: Who, endpoint: Option<&str>, bucket: &str, prefix: &str) -> Rule {
        Rule {
            who,
            endpoint: endpoint.map(str::to_owned),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    #[test]
    fn nobody_reads_anything_until_a_rule_says_so() {
        let access = Access::of(&[], "main", 1000, &[1000]);
        assert!(!access.allows("train", "k") && !access.allows_list("train", ""));
        assert!(Access::All.allows("train", "k"));
    }

    #[test]
    fn a_rule_gives_one_prefix_of_one_bucket_to_whom_it_names() {
        let rules = [
            rule(Who::Uid(1000), None, "train", "set-a/"),
            rule(Who::Gid(7), Some("main"), "eval", ""),
        ];
        let access = Access::of(&rules, "main", 1000, &[5]);
        assert!(access.allows("train", "set-a/x") && access.allows_list("train", "set-a/"));
        assert!(!access.allows("train", "set-b/x") && !access.allows_list("train", "set-"));
        assert!(!access.allows("train2", "set-a/x") && !access.allows("eval", "x"));
        let grouped = Access::of(&rules, "main", 1, &[5, 7]);
        assert!(grouped.allows("eval", "x") && !grouped.allows("train", "set-a/x"));
        assert!(!Access::of(&rules, "other", 1, &[7]).allows("eval", "x"));
    }

    #[test]
    fn no_key_climbs_out_of_its_prefix() {
        let rules = [rule(Who::Uid(1), None, "b", "a/")];
        let access = Access::of(&rules, "main", 1, &[]);
        for key in ["a/../c", "a/./../c", "a/b/..", "a/."] {
            assert!(!access.allows("b", key), "{key}");
        }
        assert!(access.allows("b", "a/..b/c...") && access.allows("b", "a//b"));
    }
}
