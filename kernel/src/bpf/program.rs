//! Loads programs, and says why the kernel refuses one.

use std::ffi::{CStr, c_long};
use std::io;
use std::os::fd::OwnedFd;

use super::{bpf, number, object_name, owned};

const PROG_LOAD: c_long = 5;
/// Octets of an instruction.
const INSTRUCTION: usize = 8;
/// Octets of the verifier's log.
const VERIFIER_LOG: usize = 1 << 20;

/// What the kernel is given.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Of which the kernel keeps 15 octets.
    pub name: &'a str,
    /// `enum bpf_prog_type`.
    pub kind: u32,
    /// `enum bpf_attach_type`.
    pub attach_type: u32,
    /// Some helpers are only for programs under the kernel's.
    pub license: &'a CStr,
    /// Relocated.
    pub instructions: &'a [u8],
    /// Of a program that uses the kernel's functions and types.
    pub types: Option<Types<'a>>,
}

/// The types of an object (BTF).
#[derive(Clone, Copy, Debug)]
pub struct Types<'a> {
    /// As the kernel has loaded them.
    pub loaded: &'a OwnedFd,
    /// The object's `struct bpf_func_info`.
    pub functions: &'a [u8],
    /// Octets of one of them.
    pub function_size: usize,
}

/// Why the kernel refuses a program, with what the verifier says last.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refuses {program}: {error}{}", said_last(.log))]
pub struct Refused {
    program: String,
    error: io::Error,
    log: String,
}

/// Loads a program. The log costs the verifier most of its time, so it is written only for one that is refused.
///
/// # Errors
/// With the end of the verifier's log.
pub fn load(code: &Code<'_>) -> Result<OwnedFd, Refused> {
    load_with_log(code, 0, &mut []).or_else(|_| {
        let mut log = vec![0; VERIFIER_LOG];
        load_with_log(code, 1, &mut log).map_err(|error| {
            // What it took back stands behind the end.
            let log = log.split(|octet| *octet == 0).next().unwrap_or_default();
            Refused {
                program: code.name.to_owned(),
                error,
                log: String::from_utf8_lossy(log).into_owned(),
            }
        })
    })
}

/// The end of the verifier's log: what it refuses, and the instructions before.
#[must_use]
pub fn said_last(log: &str) -> String {
    const LINES: usize = 6;
    // The last lines are statistics.
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| !line.starts_with("processed "))
        .collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter().map(|line| format!("\n  {}", line.trim())).collect()
}

fn load_with_log(code: &Code<'_>, level: u32, log: &mut [u8]) -> io::Result<OwnedFd> {
    let count = |octets: &[u8], size: usize| u32::try_from(octets.len() / size).map_err(io::Error::other);
    let mut attributes = ProgramLoad {
        kind: code.kind,
        count: count(code.instructions, INSTRUCTION)?,
        instructions: code.instructions.as_ptr() as u64,
        license: code.license.as_ptr() as u64,
        log_level: level,
        log_size: u32::try_from(log.len()).map_err(io::Error::other)?,
        log: if log.is_empty() {
            0
        } else {
            log.as_mut_ptr() as u64
        },
        kernel_version: 0,
        flags: 0,
        name: object_name(code.name),
        interface: 0,
        attach_type: code.attach_type,
        types: 0,
        function_size: 0,
        functions: 0,
        function_count: 0,
    };
    if let Some(types) = &code.types {
        attributes.types = number(types.loaded);
        attributes.function_size = u32::try_from(types.function_size).map_err(io::Error::other)?;
        attributes.functions = types.functions.as_ptr() as u64;
        attributes.function_count = count(types.functions, types.function_size)?;
    }
    // SAFETY: instructions, licence, functions and log outlive the call, and have the sizes that are given.
    unsafe { bpf(PROG_LOAD, &mut attributes) }.and_then(owned)
}

/// The members of `union bpf_attr` that are used.
#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
    types: u32,
    function_size: u32,
    functions: u64,
    function_count: u32,
}
