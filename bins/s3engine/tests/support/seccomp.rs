//! Programs for which a system call is closed, as containers close some.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has a program run as nobody, with so little memory that it may lock. Only for who is root.
pub fn with_little_locked_memory(command: &mut Command, bytes: u64) {
    command.uid(65534).gid(65534);
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: between fork and exec only one system call is made, which reads the closure's own value.
    unsafe {
        command.pre_exec(
            move || match libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            },
        );
    }
}

/// Has a program's calls of `number` fail as not permitted.
pub fn close(command: &mut Command, number: libc::c_long) {
    // SAFETY: between fork and exec only two system calls are made, of memory on the stack.
    unsafe {
        command.pre_exec(move || close_here(number));
    }
}

/// The same for this process, and all that it becomes.
fn close_here(number: libc::c_long) -> io::Result<()> {
    let step = |code, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut steps = [
        // The call's number, which stands first.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            number as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program and its steps live until the call returns; the kernel copies them.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) != 0
    };
    match failed {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}
