//! What owner and peer say to each other: one packet of 64 bytes a message, little-endian.
//!
//! ```text
//! 0     2        4         8            16        24          32             40      48       64
//! kind  version  rkey/why  base         length    fd offset   slab's length  memory  device     (Segment)
//! kind  version  0         capability (16 bytes)  0                                             (Hello)
//! ```
//! Memory is 0 for the host's; 1 for a CUDA device's, which is named by its UUID.
//!
//! ```text
//! peer                          owner
//! Hello{capability}   ────────▶
//!                     ◀────────  Welcome, or Refused{why} and the end
//! Fetch{rkey}         ────────▶
//!                     ◀────────  Segment{..} with the slab's descriptor, or Unknown{rkey}
//!                     ◀────────  Revoke{rkey}        at any time after Segment
//! Revoked{rkey}       ────────▶                      no write through rkey runs or can start
//! Bye                 ────────▶                      the same for every rkey of this connection
//! ```

use s3engine_pool::cuda::Uuid;

use super::identity::Capability;

/// Bytes of every message.
pub(super) const LEN: usize = 64;

const VERSION: u16 = 2;

/// Why an owner turned a peer away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The two belong to different users.
    User,
    /// The capability is not this owner's.
    Capability,
    /// The two speak different versions of the protocol.
    Version,
    /// The owner has as many peers as it takes.
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Hello { capability: Capability },
    Welcome,
    Refused { why: Refusal },
    Fetch { rkey: u32 },
    Segment { rkey: u32, extent: Extent },
    Unknown { rkey: u32 },
    Revoke { rkey: u32 },
    Revoked { rkey: u32 },
    Bye,
}

/// What is said of memory: whose it is.
const HOST: u64 = 0;
const CUDA: u64 = 1;

/// Where a registered segment lies: in the owner's addresses, and in the slab whose descriptor is sent beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) fd_offset: u64,
    /// Bytes of the whole slab: a device's memory is mapped as a whole.
    pub(super) slab_len: u64,
    /// The device, where it is a device's memory.
    pub(super) device: Option<Uuid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    #[error("a message of {len} bytes")]
    Length { len: usize },
    #[error("a message of version {version}")]
    Version { version: u16 },
    #[error("a message of unknown kind {kind}")]
    Kind { kind: u16 },
    #[error("a message of kind {kind} with values that it cannot have")]
    Content { kind: u16 },
}

impl Extent {
    /// The segment's first byte within itself for an address, where `len` bytes from there lie inside.
    pub(super) fn locate(&self, address: u64, len: u64) -> Option<u64> {
        let start = address.checked_sub(self.base)?;
        (start.checked_add(len)? <= self.len).then_some(start)
    }

    /// Bytes of the slab up to the segment's end; none where the numbers make no sense.
    pub(super) fn fd_end(&self) -> Option<u64> {
        self.base.checked_add(self.len)?;
        let end = self.fd_offset.checked_add(self.len)?;
        (self.len > 0 && end <= self.slab_len).then_some(end)
    }
}

impl Refusal {
    const ALL: [Refusal; 4] = [
        Refusal::User,
        Refusal::Capability,
        Refusal::Version,
        Refusal::Busy,
    ];

    fn code(self) -> u32 {
        match self {
            Refusal::User => 1,
            Refusal::Capability => 2,
            Refusal::Version => 3,
            Refusal::Busy => 4,
        }
    }
}

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Message::Hello { .. } => 1,
            Message::Welcome => 2,
            Message::Refused { .. } => 3,
            Message::Fetch { .. } => 4,
            Message::Segment { .. } => 5,
            Message::Unknown { .. } => 6,
            Message::Revoke { .. } => 7,
            Message::Revoked { .. } => 8,
            Message::Bye => 9,
        }
    }

    pub(super) fn encode(&self) -> [u8; LEN] {
        let mut packet = [0; LEN];
        packet[0..2].copy_from_slice(&self.kind().to_le_bytes());
        packet[2..4].copy_from_slice(&VERSION.to_le_bytes());
        let small = match *self {
            Message::Fetch { rkey }
            | Message::Segment { rkey, .. }
            | Message::Unknown { rkey }
            | Message::Revoke { rkey }
            | Message::Revoked { rkey } => rkey,
            Message::Refused { why } => why.code(),
            Message::Hello { .. } | Message::Welcome | Message::Bye => 0,
        };
        packet[4..8].copy_from_slice(&small.to_le_bytes());
        match *self {
            Message::Hello { capability } => packet[8..24].copy_from_slice(capability.bytes()),
            Message::Segment { extent, .. } => {
                packet[8..16].copy_from_slice(&extent.base.to_le_bytes());
                packet[16..24].copy_from_slice(&extent.len.to_le_bytes());
                packet[24..32].copy_from_slice(&extent.fd_offset.to_le_bytes());
                packet[32..40].copy_from_slice(&extent.slab_len.to_le_bytes());
                if let Some(Uuid(device)) = extent.device {
                    packet[40..48].copy_from_slice(&CUDA.to_le_bytes());
                    packet[48..64].copy_from_slice(&device);
                }
            }
            _ => {}
        }
        packet
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let length = WireError::Length { len: bytes.len() };
        // Other versions have other lengths.
        match bytes {
            [_, _, low, high, ..] => match u16::from_le_bytes([*low, *high]) {
                VERSION => {}
                version => return Err(WireError::Version { version }),
            },
            _ => return Err(length),
        }
        let packet: &[u8; LEN] = bytes.try_into().map_err(|_| length)?;
        let kind = u16::from_le_bytes(field(packet, 0));
        let rkey = u32::from_le_bytes(field(packet, 4));
        let number = |at| u64::from_le_bytes(field(packet, at));
        let message = match kind {
            1 => Message::Hello {
                capability: Capability::from(field(packet, 8)),
            },
            2 => Message::Welcome,
            3 => match Refusal::ALL.into_iter().find(|why| why.code() == rkey) {
                Some(why) => Message::Refused { why },
                None => return Err(WireError::Content { kind }),
            },
            4 => Message::Fetch { rkey },
            5 => {
                let extent = Extent {
                    base: number(8),
                    len: number(16),
                    fd_offset: number(24),
                    slab_len: number(32),
                    device: match number(40) {
                        HOST => None,
                        CUDA => Some(Uuid(field(packet, 48))),
                        _ => return Err(WireError::Content { kind }),
                    },
                };
                Message::Segment { rkey, extent }
            }
            6 => Message::Unknown { rkey },
            7 => Message::Revoke { rkey },
            8 => Message::Revoked { rkey },
            9 => Message::Bye,
            _ => return Err(WireError::Kind { kind }),
        };
        // Unused bytes are zero, so that a later version can give them a meaning.
        if message.encode() == *packet {
            Ok(message)
        } else {
            Err(WireError::Content { kind })
        }
    }
}

fn field<const N: usize>(packet: &[u8; LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| packet[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_extent() -> impl Strategy<Value = Extent> {
        any::<([u64; 4], Option<[u8; 16]>)>().prop_map(
            |([base, len, fd_offset, slab_len], device)| Extent {
                base,
                len,
                fd_offset,
                slab_len,
                device: device.map(Uuid),
            },
        )
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let rkey = any::<u32>();
        prop_oneof![
            any::<[u8; 16]>().prop_map(|bytes| Message::Hello {
                capability: Capability::from(bytes)
            }),
            Just(Message::Welcome),
            prop::sample::select(Refusal::ALL.to_vec()).prop_map(|why| Message::Refused { why }),
            rkey.prop_map(|rkey| Message::Fetch { rkey }),
            (rkey, any_extent()).prop_map(|(rkey, extent)| Message::Segment { rkey, extent }),
            rkey.prop_map(|rkey| Message::Unknown { rkey }),
            rkey.prop_map(|rkey| Message::Revoke { rkey }),
            rkey.prop_map(|rkey| Message::Revoked { rkey }),
            Just(Message::Bye),
        ]
    }

    #[test]
    fn the_layout_is_fixed() {
        let extent = Extent {
            base: 0x1122,
            len: 0x33,
            fd_offset: 0x44,
            slab_len: 0x77,
            device: None,
        };
        let mut packet = [0; LEN];
        packet[..9].copy_from_slice(&[5, 0, 2, 0, 0xef, 0xbe, 0xad, 0xde, 0x22]);
        (packet[9], packet[16], packet[24], packet[32]) = (0x11, 0x33, 0x44, 0x77);
        let rkey = 0xdead_beef;
        assert_eq!(Message::Segment { rkey, extent }.encode(), packet);
        let device = std::array::from_fn(|nth| nth as u8 + 1);
        let extent = Extent {
            device: Some(Uuid(device)),
            ..extent
        };
        packet[40] = 1;
        packet[48..].copy_from_slice(&device);
        assert_eq!(Message::Segment { rkey, extent }.encode(), packet);
    }

    #[test]
    fn what_is_wrong_with_a_message_is_told() {
        let bye = Message::Bye.encode();
        assert_eq!(
            Message::decode(&bye[..63]),
            Err(WireError::Length { len: 63 })
        );
        assert_eq!(
            Message::decode(&bye[..3]),
            Err(WireError::Length { len: 3 })
        );
        let long = [&bye[..], &[0]].concat();
        assert_eq!(Message::decode(&long), Err(WireError::Length { len: 65 }));
        let first = [&[9, 0, 1, 0][..], &[0; 28]].concat();
        assert_eq!(
            Message::decode(&first),
            Err(WireError::Version { version: 1 }),
            "which had 32 bytes"
        );
        let with = |at: usize, byte: u8| {
            let mut packet = bye;
            packet[at] = byte;
            Message::decode(&packet)
        };
        assert_eq!(with(2, 3), Err(WireError::Version { version: 3 }));
        assert_eq!(with(0, 99), Err(WireError::Kind { kind: 99 }));
        assert_eq!(with(31, 1), Err(WireError::Content { kind: 9 }));
        assert_eq!(with(0, 3), Err(WireError::Content { kind: 3 }));
        assert!(matches!(with(0, 5), Ok(Message::Segment { .. })));
        for (at, byte) in [(40, 2), (41, 1), (48, 1)] {
            let mut packet = bye;
            (packet[0], packet[at]) = (5, byte);
            let other = Message::decode(&packet);
            assert_eq!(other, Err(WireError::Content { kind: 5 }), "{at}");
        }
    }

    #[test]
    fn a_window_is_located_inside_its_segment_only() {
        let extent = Extent {
            base: 1000,
            len: 100,
            fd_offset: 0,
            slab_len: 100,
            device: None,
        };
        assert_eq!(extent.locate(1000, 100), Some(0));
        assert_eq!(extent.locate(1099, 1), Some(99));
        assert_eq!(extent.locate(1100, 0), Some(100));
        for (address, len) in [(999, 1), (1000, 101), (1100, 1), (1001, u64::MAX), (0, 0)] {
            assert_eq!(extent.locate(address, len), None, "{address} {len}");
        }
        let end = |base, len, fd_offset, slab_len| {
            Extent {
                base,
                len,
                fd_offset,
                slab_len,
                device: None,
            }
            .fd_end()
        };
        assert_eq!(end(1, 2, 3, 5), Some(5));
        assert_eq!(end(1, 2, 3, 4), None, "a slab that is shorter");
        assert_eq!(end(1, 0, 3, 5), None);
        assert_eq!(end(u64::MAX, 1, 0, u64::MAX), None);
        assert_eq!(end(0, 1, u64::MAX, u64::MAX), None);
    }

    proptest! {
        #[test]
        fn every_message_is_read_back(message in any_message()) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..72)) {
            let _ = Message::decode(&bytes);
        }

        #[test]
        fn a_damaged_message_never_panics_and_is_written_the_same_if_accepted(
            message in any_message(),
            damage in prop::collection::vec((0..LEN, any::<u8>()), 1..4),
        ) {
            let mut packet = message.encode();
            for (at, byte) in damage {
                packet[at] = byte;
            }
            if let Ok(read) = Message::decode(&packet) {
                prop_assert_eq!(read.encode(), packet);
            }
        }
    }
}
