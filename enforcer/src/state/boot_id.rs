//! Which boot of the machine this is. Moments are counted from boot and the kernel's sets go with it, so what was kept
//! before means nothing after.

use std::io;
use std::str::FromStr;

/// Where the kernel says it (`Documentation/admin-guide/sysctl/kernel.rst`, random).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The random number of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(u128);

/// A text that is no boot id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no boot id; 32 hexadecimal digits are, with or without hyphens")]
pub struct InvalidBootId(String);

impl BootId {
    /// That of the boot that is now.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn read() -> io::Result<Self> {
        let text = std::fs::read_to_string(BOOT_ID)?;
        text.trim_end().parse().map_err(io::Error::other)
    }

    pub(super) const fn to_octets(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

impl FromStr for BootId {
    type Err = InvalidBootId;

    fn from_str(text: &str) -> Result<Self, InvalidBootId> {
        let digits: String = text.chars().filter(|character| *character != '-').collect();
        let is_number = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        match u128::from_str_radix(&digits, 16) {
            Ok(number) if is_number => Ok(Self(number)),
            Ok(_) | Err(_) => Err(InvalidBootId(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_32_hexadecimal_digits() {
        let id = "3f2a8a2e-6d6e-4b0e-9c3e-0123456789ab";
        assert_eq!(id.parse::<BootId>(), id.replace('-', "").parse());
        for wrong in [
            "",
            "3f2a",
            "+f2a8a2e6d6e4b0e9c3e0123456789ab",
            "3f2a8a2e6d6e4b0e9c3e0123456789abc",
        ] {
            assert_eq!(wrong.parse::<BootId>(), Err(InvalidBootId(wrong.to_owned())));
        }
        assert_eq!(BootId::read().unwrap(), BootId::read().unwrap());
    }
}
