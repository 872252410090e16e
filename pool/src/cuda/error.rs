//! Why CUDA did not do what it was asked for.

/// Why CUDA memory is not to be had, or was not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not there, or does not start.
    #[error("no CUDA on this host: {why}")]
    NoDriver {
        /// What was looked for, or what the driver said.
        why: String,
    },
    /// The driver does not know what is needed.
    #[error("the CUDA driver is for CUDA {}.{}, and 12.0 is the least: update the driver", .version / 1000, .version % 1000 / 10)]
    OldDriver {
        /// As the driver gives it: 1000 * major + 10 * minor.
        version: i32,
    },
    /// This process does not see such a device.
    #[error(
        "no CUDA device {wanted}: this process sees {seen} (CUDA_VISIBLE_DEVICES may hide others)"
    )]
    NoSuchDevice {
        /// The device asked for.
        wanted: String,
        /// Those that there are.
        seen: String,
    },
    /// A call of the driver failed.
    #[error("{step} on {device} failed: {name} ({code}): {text}")]
    Driver {
        /// What was tried.
        step: &'static str,
        /// On which device.
        device: String,
        /// The driver's number.
        code: u32,
        /// Its name for it.
        name: String,
        /// Its text.
        text: String,
    },
    /// A descriptor for the memory could not be had, or kept.
    #[error("{step} for memory of {device} failed: {source}", source = std::io::Error::from_raw_os_error(*.errno))]
    System {
        /// What was tried.
        step: &'static str,
        /// Of which device.
        device: String,
        /// The system's error number.
        errno: i32,
    },
    /// The memory cannot be used for this.
    #[error("{what}: {why}")]
    Unusable {
        /// What was to be done.
        what: &'static str,
        /// What is in the way.
        why: String,
    },
    /// This process is a forked child of one that used CUDA.
    #[error(
        "CUDA was started in the process that forked this one: it cannot be used here. Start workers by spawn or exec"
    )]
    Forked,
}

/// What kind of failure it is, for those whom it reaches as a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaCause {
    /// No driver, or one that cannot be used.
    NoDriver,
    /// The device is not seen.
    NoSuchDevice,
    /// The device has no memory left.
    OutOfMemory,
    /// The device, or the context on it, is of no use any more.
    DeviceLost,
    /// Anything else.
    Other,
}

impl CudaError {
    /// What kind of failure it is.
    pub fn cause(&self) -> CudaCause {
        match self {
            CudaError::NoDriver { .. } | CudaError::OldDriver { .. } => CudaCause::NoDriver,
            CudaError::NoSuchDevice { .. } => CudaCause::NoSuchDevice,
            _ if self.is_out_of_memory() => CudaCause::OutOfMemory,
            _ if self.is_device_lost() => CudaCause::DeviceLost,
            _ => CudaCause::Other,
        }
    }

    /// Whether the device has no memory left.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::Driver { code: 2, .. })
    }

    /// Whether the device, or this process's context on it, is of no use any more: nothing that is tried again in
    /// this process can succeed.
    pub fn is_device_lost(&self) -> bool {
        // Unavailable, gone, ECC, and the errors that end a context.
        const LOST: [u32; 14] = [
            4, 46, 101, 214, 219, 220, 226, 700, 702, 710, 714, 718, 719, 999,
        ];
        matches!(self, CudaError::Driver { code, .. } if LOST.contains(code))
    }
}
