//! The environment, in which a variable that is set to nothing is as good as none.

use std::collections::HashMap;

/// Variables and their values.
pub(super) struct Variables(HashMap<String, String>);

impl Variables {
    /// Those of this process. What is no text is no variable that counts here.
    pub(super) fn of_process() -> Variables {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Variables(std::env::vars_os().filter_map(text).collect())
    }

    /// The value, unless it is nothing.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name).map(String::as_str);
        value.filter(|value| !value.trim().is_empty())
    }

    /// Whether it is set to nothing.
    pub(super) fn is_empty(&self, name: &str) -> bool {
        self.0
            .get(name)
            .is_some_and(|value| value.trim().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r54_a_variable_set_to_nothing_counts_as_not_set() {
        let pairs = [("A", ""), ("B", " \t"), ("C", "c"), ("D", " d ")];
        let map = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let variables = Variables(map.into());
        assert_eq!(
            ["A", "B", "C", "D", "E"].map(|name| variables.get(name)),
            [None, None, Some("c"), Some(" d "), None]
        );
        assert!(variables.is_empty("A") && variables.is_empty("B"));
        assert!(!variables.is_empty("C") && !variables.is_empty("E"));
    }
}
