//! What cuFile's numbers mean.

use std::fmt;

use s3engine_pool::RegisterError;

/// The base of its own numbers; smaller ones, negated, are the system's.
const BASE: i32 = 5000;
/// `CU_FILE_CUDA_DRIVER_ERROR`: the other number is the driver's.
const OF_CUDA: i32 = BASE + 11;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    code: i32,
    cuda: i32,
}

impl Code {
    /// Of a code and the CUDA driver's.
    pub(super) fn check((code, cuda): (i32, i32)) -> Result<(), Code> {
        match code {
            0 => Ok(()),
            _ => Err(Code { code, cuda }),
        }
    }

    /// The system's number, where it is one.
    fn errno(self) -> Option<i32> {
        let errno = self.code.checked_neg()?;
        (1..4096).contains(&errno).then_some(errno)
    }

    /// In the words of the public header, shortened.
    fn words(self) -> &'static str {
        match self.code.wrapping_sub(BASE) {
            1 => "driver not initialized",
            2 => "invalid property",
            4 => "nvidia-fs version mismatch",
            7 => "GPUDirect Storage not supported on this platform",
            9 => "GPUDirect Storage not supported on this GPU",
            10 => "nvidia-fs ioctl failed",
            11 => "CUDA driver error",
            12 => "invalid device pointer",
            13 => "invalid type of memory",
            14 => "pointer range beyond its allocation",
            15 => "CUDA context mismatch",
            16 => "beyond the most that may be pinned",
            17 => "beyond what is mapped",
            22 => "invalid arguments",
            23 => "already registered",
            24 => "not registered",
            25 => "permission denied",
            29 => "GPU not found",
            30 => "internal error",
            36 => "pinning GPU memory failed",
            43 => "out of memory",
            45 => "registration of the buffer failed",
            47 => "invalid CUDA context",
            _ => "unknown code",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno() {
            Some(errno) => write!(f, "cuFile: {}", std::io::Error::from_raw_os_error(errno)),
            None if self.code == OF_CUDA => {
                write!(f, "cuFile {} ({} {})", self.code, self.words(), self.cuda)
            }
            None => write!(f, "cuFile {} ({})", self.code, self.words()),
        }
    }
}

impl From<Code> for RegisterError {
    fn from(code: Code) -> Self {
        RegisterError {
            errno: code.errno(),
            text: code.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_cufiles_the_drivers_or_the_systems() {
        let told = |code, cuda| Code::check((code, cuda)).unwrap_err().to_string();
        assert_eq!(
            told(5045, 0),
            "cuFile 5045 (registration of the buffer failed)"
        );
        assert_eq!(told(5011, 201), "cuFile 5011 (CUDA driver error 201)");
        assert_eq!(told(-12, 0), "cuFile: Cannot allocate memory (os error 12)");
        assert_eq!(told(i32::MIN, 0), "cuFile -2147483648 (unknown code)");
        assert_eq!(Code::check((0, 7)), Ok(()));
        let error = RegisterError::from(Code { code: -14, cuda: 0 });
        assert_eq!(error.errno, Some(14));
    }
}
