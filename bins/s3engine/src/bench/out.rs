//! Where a bench tells people what it measured.

use std::io::{self, Write};

use crate::bench::json_file::write_to_stdout;
use crate::exit::Failure;

/// Where text goes.
pub(crate) struct Out {
    pub(crate) quiet: bool,
    /// stdout has the JSON.
    pub(crate) to_stderr: bool,
}

impl Out {
    /// Tells people: on stdout, or on stderr where JSON goes to stdout.
    pub(crate) fn say(&self, text: &str) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        if self.to_stderr {
            let _ = io::stderr().write_all(text.as_bytes());
            return Ok(());
        }
        write_to_stdout(text).map_err(Failure::unwritten)
    }

    /// Something that is no figure.
    #[allow(clippy::unnecessary_wraps, reason = "it stands where `say` may too")]
    pub(crate) fn note(&self, text: &str) -> Result<(), Failure> {
        let _ = writeln!(io::stderr(), "note: {text}");
        Ok(())
    }
}
