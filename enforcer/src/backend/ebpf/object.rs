//! An object of clang: programs, with the maps and types that they need. aya reads and links it. aya's loader of objects is not used: it
//! reads all types of the kernel before each, which takes longer than all else, and the programs at sockets need none of them.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use aya::maps::{MapData, MapError};
use aya::pin::PinError;
use aya_obj::btf::{Btf, BtfError, BtfFeatures, BtfRelocationError};
use aya_obj::generated::bpf_insn;
use aya_obj::relocation::EbpfRelocationError;
use aya_obj::{Function, ParseError};

use super::syscall::{self, ProgramKind, Refused};

/// What clang 14 writes, and what every kernel knows that has `bpf_loop` (5.17). It writes no enumerations of 64 bits (6.0).
const TYPES: BtfFeatures = BtfFeatures::new(true, true, true, true, true, true, true, false);

/// An object, with its types in the kernel.
#[derive(Debug)]
pub(super) struct Object {
    object: aya_obj::Object,
    types: OwnedFd,
    /// Open as long as instructions name them by their descriptors.
    maps: Vec<OwnedFd>,
}

/// Why an object cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectError {
    #[error("the object cannot be read")]
    Form(#[from] ParseError),
    #[error("types (BTF) cannot be used")]
    Types(#[from] BtfError),
    #[error("the kernel's types (BTF) are others")]
    Fields(#[from] BtfRelocationError),
    #[error("the kernel refuses the object's types")]
    OwnTypes(#[source] io::Error),
    #[error("map {0} cannot be opened")]
    Open(String, #[source] io::Error),
    #[error("map {0} cannot be made")]
    Make(String, #[source] MapError),
    #[error("map {0} cannot be pinned")]
    Pin(String, #[source] PinError),
    #[error("the object cannot be linked")]
    Link(#[from] EbpfRelocationError),
}

impl Object {
    /// Reads an object, and gives the kernel its types.
    pub(super) fn read(octets: &[u8]) -> Result<Self, ObjectError> {
        let mut object = aya_obj::Object::parse(octets)?;
        let types = object
            .fixup_and_sanitize_btf(&TYPES)?
            .map_or_else(Vec::new, Btf::to_bytes);
        let types = syscall::load_types(&types).map_err(ObjectError::OwnTypes)?;
        Ok(Self {
            object,
            types,
            maps: Vec::new(),
        })
    }

    /// Finds the fields of the kernel's structures that the programs read.
    pub(super) fn relocate_fields(&mut self, kernel: &Btf) -> Result<(), ObjectError> {
        Ok(self.object.relocate_btf(kernel)?)
    }

    /// Links the programs with the maps that are pinned in a directory. Missing ones are made and pinned.
    pub(super) fn link(&mut self, maps: &Path) -> Result<(), ObjectError> {
        // Constants of the compiler have names that begin with a dot; nothing refers to them.
        let declared = std::mem::take(&mut self.object.maps).into_iter();
        let declared = declared.filter(|(name, _)| !name.starts_with('.'));
        let opened = declared.map(|(name, map)| self.open(maps, &name, &map).map(|fd| (name, fd, map)));
        let opened: Vec<_> = opened.collect::<Result<_, _>>()?;
        let each = opened
            .iter()
            .map(|(name, fd, map)| (name.as_str(), fd.as_raw_fd(), map));
        let keys = self.object.functions.keys();
        let sections: HashSet<usize> = keys.map(|(section, _)| *section).collect();
        self.object.relocate_maps(each, &sections)?;
        self.object.relocate_calls(&sections)?;
        self.maps = opened.into_iter().map(|(_, fd, _)| fd).collect();
        Ok(())
    }

    fn open(&self, maps: &Path, name: &str, map: &aya_obj::Map) -> Result<OwnedFd, ObjectError> {
        let path = maps.join(name);
        let failed = |error| ObjectError::Open(name.to_owned(), error);
        match syscall::open_pin(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened.map_err(failed),
        }
        let made = MapData::create(map.clone(), name, Some(self.types.as_fd()));
        let made = made.map_err(|error| ObjectError::Make(name.to_owned(), error))?;
        made.pin(&path)
            .map_err(|error| ObjectError::Pin(name.to_owned(), error))?;
        syscall::open_pin(&path).map_err(failed)
    }

    /// The instructions of a program.
    pub(super) fn instructions(&mut self, program: &str) -> Option<&mut [bpf_insn]> {
        let key = self.object.programs.get(program)?.function_key();
        Some(&mut self.object.functions.get_mut(&key)?.instructions)
    }

    /// Loads a linked program; none where the object has no program of this name.
    pub(super) fn load(&self, program: &str, kind: ProgramKind) -> Option<Result<OwnedFd, Refused>> {
        let found = self.object.programs.get(program)?;
        let function: &Function = self.object.functions.get(&found.function_key())?;
        let license = &self.object.license;
        Some(syscall::load_program(
            program,
            kind,
            license,
            function,
            &self.types,
        ))
    }
}

/// An error with what caused it.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    said
}
