//! How bytes get from plain sockets into memory.

use std::fmt;
use std::io;

use s3engine_pool::uring;

/// What brings bytes from plain sockets into memory. Those of TLS, and those that are staged on their way to a device,
/// come by epoll whichever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// io_uring: the kernel puts the bytes of large bodies into memory by itself. Those of small ones
    /// come by epoll, which is as good for them.
    Uring,
    /// epoll: bytes are read into memory when the kernel says that some have come.
    Epoll,
}

impl Driver {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Driver::Uring => "uring",
            Driver::Epoll => "epoll",
        }
    }

    /// Whether io_uring can be used here. An error says why not.
    pub fn probe() -> io::Result<()> {
        uring::probe()
    }
}

/// The driver of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenDriver {
    /// Which it is.
    pub driver: Driver,
    /// Why it is not io_uring, where nobody has asked for another one.
    pub why: Option<String>,
    /// Nothing else will do.
    pub(crate) asked: bool,
}

impl ChosenDriver {
    /// The one that is asked for; without a wish io_uring, where it can be used.
    pub(crate) fn find(wish: Option<Driver>) -> io::Result<Self> {
        let asked = wish.is_some();
        let chosen = |driver, why| Ok(Self { driver, why, asked });
        if wish == Some(Driver::Epoll) {
            return chosen(Driver::Epoll, None);
        }
        match Driver::probe() {
            Ok(()) => chosen(Driver::Uring, None),
            Err(error) if asked => Err(error),
            Err(error) => {
                tracing::info!(%error, "io_uring cannot be used, and epoll is");
                chosen(Driver::Epoll, Some(error.to_string()))
            }
        }
    }
}

impl fmt::Display for ChosenDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.driver.name())?;
        match &self.why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}
