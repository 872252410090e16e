//! Enums without fields, whose values have stable names.

/// Text forms of an enum without fields: one list serves printing, parsing and iteration.
macro_rules! named {
    ($type:ident, $what:literal, { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in a fixed order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The stable name used in logs, metrics and JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::named::UnknownName;

            fn from_str(text: &str) -> Result<Self, $crate::named::UnknownName> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err($crate::named::UnknownName::new($what, text)),
                }
            }
        }
    };
}

/// A text that names no value of an enum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {what}")]
pub struct UnknownName {
    what: &'static str,
    text: String,
}

impl UnknownName {
    pub(crate) fn new(what: &'static str, text: &str) -> Self {
        let text = text.to_owned();
        Self { what, text }
    }
}
