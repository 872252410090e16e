//! Whose something is. After a fork the child has a copy of everything and owns none of it: its copies of
//! locks, slot tables and sockets are the parent's, and the threads that would use them are not there.

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The process that runs.
    pub fn current() -> Self {
        Self(std::process::id())
    }

    /// Whether this process made it. In a forked child: no.
    pub fn is_this(self) -> bool {
        self == Self::current()
    }
}
