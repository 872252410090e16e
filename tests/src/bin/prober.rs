//! Tries a vendor's library, for tests: as `s3engine probe-library` does.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The first is the command's name.
    let arguments: Vec<_> = env::args_os().skip(2).collect();
    match s3engine_s3::fabric::probe::answer(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
