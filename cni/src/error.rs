//! Errors as the CNI specification writes them (section 5, "Error").

use std::fmt;

use serde_json::json;

/// Codes of the specification, and one of our own (100 and above are a plugin's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    IncompatibleVersion = 1,
    InvalidEnvironment = 4,
    Io = 5,
    Undecodable = 6,
    InvalidConfig = 7,
    TryAgainLater = 11,
    NotAvailable = 50,
    NotInForce = 100,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CniError {
    pub(crate) code: Code,
    message: String,
}

impl CniError {
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: format!("egret-cni: {message}"),
        }
    }

    pub(crate) fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::new(Code::Io, format_args!("{what}: {error}"))
    }

    pub(crate) fn to_json(&self, version: &str) -> String {
        json!({"cniVersion": version, "code": self.code as u32, "msg": self.message}).to_string()
    }
}
