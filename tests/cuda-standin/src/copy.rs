//! Copies, judged when they are asked for and again when they are done.
//!
//! What was freed, unmapped or unregistered between the two is an illegal address: the device fails for good.

use std::sync::Arc;
use std::time::Duration;

use crate::codes::{Answer, ILLEGAL_ADDRESS, INVALID_VALUE};
use crate::context::Context;
use crate::driver::{Driver, lock};
use crate::gate::in_context;
use crate::host::{Cover, cover, pointer};
use crate::space::{Access, Span};
use crate::stream::{Work, submit};

/// One side of a copy.
pub enum End {
    Device(u64),
    /// Host memory that stays pinned until the copy is done.
    Pinned(u64),
    /// Host memory that stays as it is until the caller goes on.
    Pageable(u64),
    /// What host memory was when the copy was asked for.
    Taken(Vec<u8>),
}

pub struct Copy {
    to: End,
    from: End,
    len: u64,
}

pub struct Fill {
    to: u64,
    value: u8,
    len: u64,
}

/// Bytes of one side, in one piece.
struct Piece {
    at: *mut u8,
    len: u64,
    /// Keeps them where they are.
    _span: Option<Span>,
}

impl End {
    /// Where the bytes are, if they may be touched so.
    fn pieces(
        &self,
        driver: &Driver,
        len: u64,
        device: usize,
        access: Access,
    ) -> Answer<Vec<Piece>> {
        let one = |at| {
            vec![Piece {
                at,
                len,
                _span: None,
            }]
        };
        match self {
            Self::Device(start) => {
                let spans = lock(&driver.space).resolve(*start, len, device, access)?;
                Ok(spans.into_iter().map(Piece::of).collect())
            }
            Self::Pinned(start) if cover(driver, *start, len) != Cover::All => Err(INVALID_VALUE),
            Self::Pinned(start) | Self::Pageable(start) => Ok(one(pointer(*start))),
            Self::Taken(bytes) => Ok(one(bytes.as_ptr().cast_mut())),
        }
    }
}

impl Piece {
    fn of(span: Span) -> Self {
        Self {
            at: span.memory.at(span.offset),
            len: span.len,
            _span: Some(span),
        }
    }
}

impl Copy {
    fn pieces(&self, driver: &Driver, device: usize) -> Answer<(Vec<Piece>, Vec<Piece>)> {
        let to = self.to.pieces(driver, self.len, device, Access::Write)?;
        Ok((
            to,
            self.from.pieces(driver, self.len, device, Access::Read)?,
        ))
    }

    pub fn run(self, driver: &Driver, device: usize) -> Answer {
        let pieces = self.pieces(driver, device);
        let (to, from) = pieces.map_err(|_| ILLEGAL_ADDRESS)?;
        let (mut to, mut from) = (to.iter(), from.iter());
        let (mut target, mut source) = ((pointer(0), 0), (pointer(0), 0));
        let mut left = self.len;
        while left > 0 {
            for (side, pieces) in [(&mut target, &mut to), (&mut source, &mut from)] {
                if side.1 == 0 {
                    *side = pieces
                        .next()
                        .map(|piece| (piece.at, piece.len))
                        .ok_or(ILLEGAL_ADDRESS)?;
                }
            }
            let now = target.1.min(source.1);
            // SAFETY: both are mapped for so long at least: memory of a device is kept by its piece, host memory by
            // the promise of whoever asked for the copy. They may be one.
            unsafe { source.0.copy_to(target.0, now as usize) };
            for side in [&mut target, &mut source] {
                *side = (side.0.wrapping_add(now as usize), side.1 - now);
            }
            left -= now;
        }
        Ok(())
    }
}

impl Fill {
    pub fn run(self, driver: &Driver, device: usize) -> Answer {
        let to = End::Device(self.to).pieces(driver, self.len, device, Access::Write);
        for piece in to.map_err(|_| ILLEGAL_ADDRESS)? {
            // SAFETY: mapped for so long, and kept by the piece.
            unsafe { piece.at.write_bytes(self.value, piece.len as usize) };
        }
        Ok(())
    }
}

/// Host memory as one side of a copy: it must not be a device's.
fn host(driver: &Driver, start: u64, len: u64) -> Answer<End> {
    if start == 0 || lock(&driver.space).knows(start) {
        return Err(INVALID_VALUE);
    }
    match cover(driver, start, len) {
        Cover::All => Ok(End::Pinned(start)),
        Cover::None => Ok(End::Pageable(start)),
        Cover::Part => Err(INVALID_VALUE),
    }
}

/// Copies and waits for it.
fn wait(driver: &'static Driver, context: &Arc<Context>, copy: Answer<Copy>) -> Answer {
    let done = queue(driver, context, 0, Duration::ZERO, copy)?;
    if let Some(done) = done {
        done.wait();
    }
    driver.sound(context.device)
}

/// Queues a copy, if it is one that may be made. Of no bytes there is none.
fn queue(
    driver: &'static Driver,
    context: &Arc<Context>,
    stream: u64,
    delay: Duration,
    copy: Answer<Copy>,
) -> Answer<Option<Arc<crate::stream::Mark>>> {
    let copy = copy?;
    if copy.len == 0 {
        return Ok(None);
    }
    let mark = submit(driver, context, stream, delay, |stream| {
        copy.pieces(driver, stream.context.device)?;
        Ok(Work::Copy(copy))
    });
    mark.map(Some)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, len: usize) -> u32 {
    in_context("cuMemcpyHtoD_v2", |driver, context| {
        let len = len as u64;
        let from = host(driver, from, len);
        wait(
            driver,
            context,
            from.map(|from| Copy {
                to: End::Device(to),
                from,
                len,
            }),
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, len: usize) -> u32 {
    in_context("cuMemcpyDtoH_v2", |driver, context| {
        let len = len as u64;
        let to = host(driver, to, len);
        wait(
            driver,
            context,
            to.map(|to| Copy {
                to,
                from: End::Device(from),
                len,
            }),
        )
    })
}

/// Between addresses of devices nothing waits for the copy.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) -> u32 {
    in_context("cuMemcpyDtoD_v2", |driver, context| {
        let copy = Copy {
            to: End::Device(to),
            from: End::Device(from),
            len: len as u64,
        };
        queue(driver, context, 0, driver.settings.delay, Ok(copy)).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> u32 {
    in_context("cuMemcpyHtoDAsync_v2", |driver, context| {
        let len = len as u64;
        let from = match host(driver, from, len)? {
            // Nobody promises that it stays: its bytes are taken now.
            End::Pageable(start) => {
                let mut bytes = vec![0; len as usize];
                // SAFETY: the caller promises so many bytes for this call.
                unsafe { pointer(start).copy_to(bytes.as_mut_ptr(), bytes.len()) };
                End::Taken(bytes)
            }
            pinned => pinned,
        };
        let copy = Copy {
            to: End::Device(to),
            from,
            len,
        };
        queue(driver, context, stream, driver.settings.delay, Ok(copy)).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> u32 {
    in_context("cuMemcpyDtoHAsync_v2", |driver, context| {
        let len = len as u64;
        let to = host(driver, to, len)?;
        let pageable = matches!(to, End::Pageable(_));
        let copy = Copy {
            to,
            from: End::Device(from),
            len,
        };
        let done = queue(driver, context, stream, driver.settings.delay, Ok(copy))?;
        // Memory that is not pinned has its bytes when the call returns.
        if let Some(done) = done.filter(|_| pageable) {
            done.wait();
            driver.sound(context.device)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> u32 {
    in_context("cuMemcpyDtoDAsync_v2", |driver, context| {
        let copy = Copy {
            to: End::Device(to),
            from: End::Device(from),
            len: len as u64,
        };
        queue(driver, context, stream, driver.settings.delay, Ok(copy)).map(drop)
    })
}

/// Like a kernel: the caller goes on at once.
#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: u64, value: u8, len: usize) -> u32 {
    in_context("cuMemsetD8_v2", |driver, context| {
        let len = len as u64;
        if len == 0 {
            return Ok(());
        }
        submit(driver, context, 0, driver.settings.delay, |stream| {
            let fill = Fill { to, value, len };
            End::Device(to).pieces(driver, len, stream.context.device, Access::Write)?;
            Ok(Work::Fill(fill))
        })
        .map(drop)
    })
}
