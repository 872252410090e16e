//! Whether what is to be written is one file each, and none that is read.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::destination::{Destination, shown};
use crate::exit::Failure;

/// What a name leads to.
#[derive(PartialEq)]
enum Place {
    Stdout,
    /// A terminal, `/dev/null` and the like may be named twice.
    Device,
    /// Device and number: a file has many names.
    There(u64, u64),
    /// The folder by its only name, and the file's in it.
    New(PathBuf),
}

/// Refuses two outputs that are the same file, and an output that is an input. Each output comes with its flag.
pub(crate) fn distinct(outputs: &[(&str, Option<&Path>)], inputs: &[&Path]) -> Result<(), Failure> {
    let usage = |text: String| Err(Failure::Usage(text));
    let mut read = Vec::new();
    for input in inputs {
        // One that is not there is told when it is read.
        if let Ok(found) = fs::metadata(input) {
            read.push((place(&found), input));
        }
    }
    let mut written: Vec<(Place, &str)> = Vec::new();
    for (flag, name) in outputs {
        let Some(name) = name else { continue };
        let place = of_output(name)?;
        if place == Place::Device {
            continue;
        }
        if let Some((_, input)) = read.iter().find(|(other, _)| *other == place) {
            let (name, input) = (shown(name), shown(input));
            return usage(format!(
                "{flag} {name} would replace {input}, which is read"
            ));
        }
        if let Some((_, other)) = written.iter().find(|(other, _)| *other == place) {
            let name = shown(name);
            return usage(format!("{other} and {flag} are the same file, {name}"));
        }
        written.push((place, flag));
    }
    Ok(())
}

fn of_output(name: &Path) -> Result<Place, Failure> {
    let path = match Destination::chosen(name)? {
        Destination::Stdout => return Ok(stdout()),
        Destination::File(path) => path,
    };
    if let Ok(found) = fs::metadata(&path) {
        return Ok(place(&found));
    }
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    // A folder that is not there is told when the file is opened.
    let folder = fs::canonicalize(folder).unwrap_or(folder.to_owned());
    Ok(Place::New(
        folder.join(path.file_name().unwrap_or_default()),
    ))
}

/// stdout may be redirected to a file that has a name.
fn stdout() -> Place {
    let own = io::stdout().as_fd().try_clone_to_owned();
    match own.and_then(|own| File::from(own).metadata()) {
        Ok(found) if found.is_file() => place(&found),
        _ => Place::Stdout,
    }
}

fn place(found: &fs::Metadata) -> Place {
    match found.file_type().is_char_device() {
        true => Place::Device,
        false => Place::There(found.dev(), found.ino()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn both(json: &Path, html: &Path) -> Result<(), Failure> {
        distinct(&[("--json", Some(json)), ("--html", Some(html))], &[])
    }

    #[test]
    fn two_outputs_of_one_file_are_refused_by_whatever_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "").unwrap();
        symlink("a", at("link")).unwrap();
        symlink("new", at("to-new")).unwrap();
        let again = folder.path().join(".").join("new");
        for (json, html) in [
            (at("a"), at("a")),
            (at("a"), at("link")),
            (at("new"), again),
            (at("to-new"), at("new")),
            ("-".into(), "/dev/stdout".into()),
        ] {
            let failure = both(&json, &html).unwrap_err();
            assert_eq!(failure.code(), 2, "{json:?} {html:?}");
            let text = failure.to_string();
            assert!(text.starts_with("--json and --html are the same"), "{text}");
        }
        both(&at("a"), &at("new")).unwrap();
        both(Path::new("-"), &at("new")).unwrap();
        both(Path::new("/dev/null"), Path::new("/dev/null")).unwrap();
        distinct(&[("--json", Some(&at("a"))), ("--html", None)], &[]).unwrap();
    }

    #[test]
    fn an_output_that_is_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "").unwrap();
        symlink("a", at("link")).unwrap();
        let missing = at("missing");
        for output in [at("a"), at("link")] {
            let inputs = [missing.as_path(), &at("a")];
            let failure = distinct(&[("-o", Some(&output))], &inputs).unwrap_err();
            assert_eq!(failure.code(), 2);
            assert!(failure.to_string().contains("which is read"), "{failure}");
        }
        distinct(&[("-o", Some(&at("b")))], &[&at("a")]).unwrap();
    }
}
