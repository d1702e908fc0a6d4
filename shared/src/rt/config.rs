//! Configuration files: YAML, unknown fields refused, errors with line and column.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

mod quantity;

pub use quantity::{ByteSize, InvalidQuantity, MillisDuration};

/// Why a configuration file cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not what it should be; the reason has line, column and what would be accepted.
    #[error("{}: {reason}", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        reason: String,
    },
}

/// Reads a configuration file. The type is to carry `#[serde(deny_unknown_fields)]`.
///
/// # Errors
/// With file, line and column.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    serde_saphyr::from_str(&text).map_err(|error| ConfigError::Parse {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}
