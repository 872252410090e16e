//! Files that people write for this server: read whole, but not without end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// No script or model is longer.
const MOST_BYTES: u64 = 1 << 20;

/// The text of a file or of a pipe.
pub(crate) fn read_file(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    let file = File::open(path)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        let why = format!("it is longer than {MOST_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(text)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_bound_is_read_and_a_longer_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(read_file(&path).unwrap().len(), 1 << 20);
        std::fs::write(&path, vec![b'x'; (1 << 20) + 1]).unwrap();
        let endless = Path::new("/dev/zero");
        for path in [path.as_path(), endless] {
            let why = read_file(path).unwrap_err().to_string();
            assert_eq!(why, "it is longer than 1048576 bytes");
        }
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_file(&path).unwrap_err().to_string(), "it is not UTF-8");
    }
}
