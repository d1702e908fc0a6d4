//! An object file of clang with one program. Its maps are made by the caller, and found by their names; nothing else is relocated, so no
//! BTF is needed.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;

use super::program::Refused;
use super::{Map, Program};

/// Octets of a section's header (`Elf64_Shdr`), a symbol (`Elf64_Sym`), a relocation (`Elf64_Rel`), an instruction.
const SECTION: usize = 64;
const SYMBOL: usize = 24;
const RELOCATION: usize = 16;
const INSTRUCTION: usize = 8;
/// `R_BPF_64_64`: a load of 64 bits.
const LOAD: u64 = 1;
/// `BPF_PSEUDO_MAP_FD`.
const MAP_OF_DESCRIPTOR: u8 = 1;

/// An object file: ELF, 64 bits, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a>(&'a [u8]);

/// Why an object is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// It is not of the form that clang writes.
    #[error("the object cannot be read: {0}")]
    Form(&'static str),
    /// The program names a map that is not given.
    #[error("the program names {0}, which is no map")]
    Map(String),
    /// The kernel refuses the program.
    #[error(transparent)]
    Refused(#[from] Refused),
}

#[derive(Clone, Copy)]
struct Section<'a> {
    name: &'a str,
    kind: u64,
    link: usize,
    info: usize,
    octets: &'a [u8],
}

impl<'a> Object<'a> {
    /// An object in memory.
    #[must_use]
    pub const fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    /// Loads the program of a section under a name, with these maps by theirs.
    ///
    /// # Errors
    /// With the reason.
    pub fn load(
        &self,
        section: &str,
        name: &str,
        maps: &BTreeMap<&str, &Map>,
    ) -> Result<Program, ObjectError> {
        const RELOCATIONS: u64 = 9;
        let sections = self.sections().ok_or(ObjectError::Form("sections"))?;
        let index = sections.iter().position(|other| other.name == section);
        let index = index.ok_or(ObjectError::Form("no such section"))?;
        let mut code = sections[index].octets.to_vec();
        let mut of_code = sections
            .iter()
            .filter(|other| other.kind == RELOCATIONS && other.info == index);
        if let Some(relocations) = of_code.next() {
            for relocation in relocations.octets.chunks_exact(RELOCATION) {
                let name = symbol(&sections, relocations, relocation).ok_or(ObjectError::Form("symbols"))?;
                let map = maps.get(name).ok_or_else(|| ObjectError::Map(name.to_owned()))?;
                let at = number(relocation, 0, 8).and_then(|at| usize::try_from(at).ok());
                let instruction = at.and_then(|at| code.get_mut(at..)?.get_mut(..INSTRUCTION));
                let instruction = instruction.ok_or(ObjectError::Form("relocations"))?;
                instruction[1] = instruction[1] & 0xf | MAP_OF_DESCRIPTOR << 4;
                instruction[4..].copy_from_slice(&map.fd.as_raw_fd().to_le_bytes());
            }
        }
        Ok(Program::load(name, &code)?)
    }

    fn sections(&self) -> Option<Vec<Section<'a>>> {
        let file = self.0;
        let table = usize::try_from(number(file, 0x28, 8)?).ok()?;
        let count = usize::try_from(number(file, 0x3c, 2)?).ok()?;
        let names = usize::try_from(number(file, 0x3e, 2)?).ok()?;
        let header = |index: usize| file.get(table + index * SECTION..)?.get(..SECTION);
        let octets = |header: &[u8]| {
            const NOBITS: u64 = 8;
            if number(header, 4, 4)? == NOBITS {
                return Some(&[][..]);
            }
            let (at, length) = (number(header, 0x18, 8)?, number(header, 0x20, 8)?);
            file.get(usize::try_from(at).ok()?..)?
                .get(..usize::try_from(length).ok()?)
        };
        let names = octets(header(names)?)?;
        (0..count)
            .map(|index| {
                let header = header(index)?;
                Some(Section {
                    name: text(names, number(header, 0, 4)?)?,
                    kind: number(header, 4, 4)?,
                    link: usize::try_from(number(header, 0x28, 4)?).ok()?,
                    info: usize::try_from(number(header, 0x2c, 4)?).ok()?,
                    octets: octets(header)?,
                })
            })
            .collect()
    }
}

/// The name of a relocation's symbol; none for one that is no load.
fn symbol<'a>(sections: &[Section<'a>], relocations: &Section<'a>, relocation: &[u8]) -> Option<&'a str> {
    let info = number(relocation, 8, 8)?;
    if info & 0xffff_ffff != LOAD {
        return None;
    }
    let symbols = sections.get(relocations.link)?;
    let names = sections.get(symbols.link)?.octets;
    let index = usize::try_from(info >> 32).ok()?;
    let symbol = symbols.octets.get(index * SYMBOL..)?.get(..SYMBOL)?;
    text(names, number(symbol, 0, 4)?)
}

/// A number of `length` octets.
fn number(octets: &[u8], at: usize, length: usize) -> Option<u64> {
    let octets = octets.get(at..)?.get(..length)?;
    Some(
        octets
            .iter()
            .rev()
            .fold(0, |number, octet| number << 8 | u64::from(*octet)),
    )
}

/// A text that ends in a zero.
fn text(octets: &[u8], at: u64) -> Option<&str> {
    let rest = octets.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().position(|octet| *octet == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}
