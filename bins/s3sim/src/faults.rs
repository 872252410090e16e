//! Faults by a script: rules that say which requests go wrong, and how.
//!
//! The first rule in the list that matches a request decides. A rule whose action only makes sense
//! for RDMA (or for a body) matches no other request.

use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

pub use crate::action::{Action, Garbage};

/// What kind of request one is, as rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A GET of an object with an RDMA token, where the server speaks RDMA.
    Rdma,
    /// Any other GET of an object.
    Http,
    /// A HEAD of an object.
    Head,
    /// A listing. Only a rule that says `only = "list"` matches it.
    List,
}

/// Which requests go wrong, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Pattern of the key, without the bucket: `*` is any text, `?` any character. All keys if absent.
    pub key: Option<String>,
    /// The only kind of request that matches; absent, every GET and HEAD of an object does.
    pub only: Option<Kind>,
    /// How many matching requests pass first.
    #[serde(default)]
    pub skip: u64,
    /// After how many faults the rule is spent; never if absent.
    pub count: Option<u64>,
    /// How probable a fault is for each request that matches.
    #[serde(default = "certain")]
    pub probability: f64,
    /// Seed of this rule's dice.
    #[serde(default)]
    pub seed: u64,
    /// How it goes wrong.
    pub action: Action,
}

fn certain() -> f64 {
    1.0
}

/// A script that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// It is not TOML, or says something unknown.
    #[error("not a fault script: {0}")]
    Parse(String),
    /// A rule says something impossible.
    #[error("the fault rule {action} is impossible: {why}")]
    Impossible {
        /// The rule's action.
        action: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Reads a script: TOML with a list of `[[rule]]`.
pub fn parse(text: &str) -> Result<Vec<Rule>, FaultError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Script {
        #[serde(default)]
        rule: Vec<Rule>,
    }
    let script: Script = toml::from_str(text).map_err(|e| FaultError::Parse(e.to_string()))?;
    script.rule.iter().try_for_each(Rule::check)?;
    Ok(script.rule)
}

impl Rule {
    /// A rule for every GET and HEAD of an object.
    pub fn new(action: Action) -> Rule {
        Rule {
            key: None,
            only: None,
            skip: 0,
            count: None,
            probability: 1.0,
            seed: 0,
            action,
        }
    }

    /// Limits the rule to keys of a pattern.
    pub fn key(mut self, pattern: &str) -> Rule {
        self.key = Some(pattern.to_owned());
        self
    }

    /// Limits the rule to one kind of request.
    pub fn only(mut self, kind: Kind) -> Rule {
        self.only = Some(kind);
        self
    }

    /// Lets the first `n` matching requests pass.
    pub fn skip(mut self, n: u64) -> Rule {
        self.skip = n;
        self
    }

    /// Ends the rule after `n` faults.
    pub fn count(mut self, n: u64) -> Rule {
        self.count = Some(n);
        self
    }

    /// Applies the rule to a share of the matching requests, chosen by dice of that seed.
    pub fn probability(mut self, probability: f64, seed: u64) -> Rule {
        (self.probability, self.seed) = (probability, seed);
        self
    }

    fn check(&self) -> Result<(), FaultError> {
        let why = if !(0.0..=1.0).contains(&self.probability) {
            Some("probability must be 0 to 1")
        } else if self.only.is_some_and(|only| !self.action.fits(only)) {
            Some("the action never applies to that kind of request")
        } else {
            self.action.impossible()
        };
        why.map_or(Ok(()), |why| {
            Err(FaultError::Impossible {
                action: format!("{:?}", self.action),
                why,
            })
        })
    }

    fn matches(&self, kind: Kind, key: &str) -> bool {
        let kind_matches = self.only.map_or(kind != Kind::List, |only| only == kind);
        kind_matches
            && self.action.fits(kind)
            && self.key.as_ref().is_none_or(|pattern| glob(pattern, key))
    }
}

/// The rules of a running server.
#[derive(Debug, Default)]
pub struct Faults {
    active: Mutex<Vec<Active>>,
}

#[derive(Debug)]
struct Active {
    rule: Rule,
    matched: u64,
    fired: u64,
    dice: u64,
}

impl Faults {
    /// Adds a rule after those that are there.
    pub fn push(&self, rule: Rule) -> Result<(), FaultError> {
        rule.check()?;
        let dice = rule.seed;
        self.lock().push(Active {
            rule,
            matched: 0,
            fired: 0,
            dice,
        });
        Ok(())
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// The fault for one request, where a rule has one.
    pub(crate) fn pick(&self, kind: Kind, key: &str) -> Option<Action> {
        let mut active = self.lock();
        active
            .iter_mut()
            .find_map(|active| active.try_fire(kind, key))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Active>> {
        self.active.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Active {
    fn try_fire(&mut self, kind: Kind, key: &str) -> Option<Action> {
        let spent = self.rule.count.is_some_and(|count| self.fired >= count);
        if spent || !self.rule.matches(kind, key) {
            return None;
        }
        self.matched += 1;
        if self.matched <= self.rule.skip || self.roll() >= self.rule.probability {
            return None;
        }
        self.fired += 1;
        Some(self.rule.action.clone())
    }

    /// A number from 0 to below 1: the same sequence for the same seed in every build.
    fn roll(&mut self) -> f64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (crate::content::mix(self.dice) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Whether `text` as a whole matches `pattern`.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on when a guess of what the last star covers was wrong.
    let mut retry = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match retry {
                Some((after_star, covered)) => {
                    retry = Some((after_star, covered + 1));
                    (p, t) = (after_star, covered + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;
