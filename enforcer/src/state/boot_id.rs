//! Identifies the boot of the machine. Timestamps count from boot and the kernel's sets go with it: records of another
//! boot mean nothing.

use std::io;
use std::num::ParseIntError;
use std::str::FromStr;

/// `Documentation/admin-guide/sysctl/kernel.rst`, random.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's random UUID of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(u128);

impl BootId {
    /// The id of the current boot.
    ///
    /// # Errors
    /// When the kernel does not provide it.
    pub fn read() -> io::Result<Self> {
        let text = std::fs::read_to_string(BOOT_ID)?;
        text.trim_end().parse().map_err(io::Error::other)
    }

    pub(super) const fn to_octets(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

impl FromStr for BootId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u128::from_str_radix(&text.replace('-', ""), 16).map(Self)
    }
}
