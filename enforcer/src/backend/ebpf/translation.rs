//! Judges what pods send to Services behind the translation: a program at FORWARD and LOCAL_IN of netfilter, on the node.
//! There a pod is its address, under which the map has what its attach point has. The programs at the pod's socket
//! leave addresses of Services and of the node to it, and check the source of what they leave.
//!
//! Linux has such programs since 6.4. They read structures of the kernel, so they need its BTF, and conntrack built into it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use aya_obj::btf::{Btf, BtfError, BtfKind};
use aya_obj::generated::bpf_insn;
use egret_policies::rules::Digest;

use super::layout::{MAX_OWN_ADDRESSES, POD_SIZE, address, id_of};
use super::object::{Object, ObjectError, with_causes};
use super::pins::Pins;
use super::syscall::{self, Map, NetfilterHook, Refused, Update};

/// The compiled `bpf/services.bpf.c`.
const OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/services.bpf.o");
const PROGRAM: &str = "egret_services";

/// The functions of the kernel that it calls, from the number on that stands for the first.
const FIRST_FUNCTION: i32 = 0x10000;
const FUNCTIONS: [&str; 3] = ["bpf_rdonly_cast", "bpf_dynptr_from_skb", "bpf_dynptr_slice"];
/// What stands for the number of the type `nf_conn`.
const TYPE_OF_CONNECTION: i32 = 0x7e00_0001;

/// Where it is attached, with the names of the pins.
const HOOKS: [(&str, NetfilterHook); 4] = [
    ("forward4", NetfilterHook::new(NFPROTO_IPV4, NF_INET_FORWARD)),
    ("input4", NetfilterHook::new(NFPROTO_IPV4, NF_INET_LOCAL_IN)),
    ("forward6", NetfilterHook::new(NFPROTO_IPV6, NF_INET_FORWARD)),
    ("input6", NetfilterHook::new(NFPROTO_IPV6, NF_INET_LOCAL_IN)),
];
const NFPROTO_IPV4: u32 = 2;
const NFPROTO_IPV6: u32 = 10;
const NF_INET_LOCAL_IN: u32 = 1;
const NF_INET_FORWARD: u32 = 2;

/// The program, and the pods that it knows.
#[derive(Debug)]
pub(super) struct Translation {
    pods: Map,
    known: BTreeMap<Vec<u8>, Vec<u8>>,
    program: Result<OwnedFd, String>,
    pins: Pins,
}

/// Why the object cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("the kernel's types (BTF) cannot be used")]
    Types(#[from] BtfError),
    #[error("the program is not in the object")]
    Missing,
}

/// Why the program cannot be loaded.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl Translation {
    /// Opens the pinned map, and attaches the program of an object where the kernel takes it; none where it is not wanted.
    pub(super) fn open(pins: &Pins, object: Option<Result<Object, ReadError>>) -> io::Result<Self> {
        let pods = Map::open(&pins.maps().join("egret_addressed"), (20, POD_SIZE), 1)?;
        let mut known = BTreeMap::new();
        for key in pods.keys()? {
            if let Some(value) = pods.lookup(&key)? {
                known.insert(key, value);
            }
        }
        let program = match object {
            Some(object) => load(object, &pins.maps()).map_err(|error| with_causes(&error)),
            None => Err("not wanted".to_owned()),
        };
        let mut translation = Self {
            pods,
            known,
            program,
            pins: pins.clone(),
        };
        if let Err(error) = translation.attach() {
            translation.program = Err(format!("it cannot be attached: {error}"));
        }
        Ok(translation)
    }

    /// Why nothing is judged behind the translation.
    pub(super) fn fault(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// Attaches what is not attached, and then takes away what another build attached.
    pub(super) fn attach(&self) -> io::Result<()> {
        let Ok(program) = &self.program else {
            return Ok(());
        };
        let build = Digest::of(OBJECT).to_string();
        let directory = self.pins.services(&build);
        std::fs::create_dir_all(&directory)?;
        for (name, hook) in HOOKS {
            let pin = directory.join(name);
            if !pin.exists() {
                syscall::pin(&syscall::attach_netfilter(program.as_fd(), hook)?, &pin)?;
            }
        }
        self.pins.retain_services(Some(&build))
    }

    /// Once pods are programmed: nothing is left to a program that judges no more.
    pub(super) fn detach_unwanted(&mut self) -> io::Result<()> {
        if self.program.is_err() {
            self.pins.retain_services(None)?;
            let keys: Vec<_> = self.known.keys().cloned().collect();
            keys.iter().try_for_each(|key| self.remove(key))?;
        }
        Ok(())
    }

    /// Gives the program a pod, as its attach point has it.
    pub(super) fn set_pod(&mut self, own: &[IpAddr], value: &[u8]) -> io::Result<()> {
        if self.program.is_err() {
            return Ok(());
        }
        let own = own.iter().take(MAX_OWN_ADDRESSES);
        let keys: BTreeSet<Vec<u8>> = own.map(|own| address(*own).to_vec()).collect();
        for key in &keys {
            self.write(key, value)?;
        }
        let is_left =
            |(key, held): &(&Vec<u8>, &Vec<u8>)| id_of(held) == id_of(value) && !keys.contains(*key);
        self.remove_if(is_left)
    }

    /// Has clients outside judged by a list, or not.
    pub(super) fn set_outside(&mut self, value: Option<&[u8]>) -> io::Result<()> {
        let none = [0; 20];
        match value {
            Some(value) if self.program.is_ok() => self.write(&none, value),
            Some(_) | None => self.remove(&none),
        }
    }

    /// Forgets the pod of a cgroup.
    pub(super) fn forget(&mut self, id: u64) -> io::Result<()> {
        self.remove_if(|(_, held)| id_of(held) == Some(id))
    }

    /// Forgets pods whose cgroups are gone.
    pub(super) fn retain(&mut self, ids: &BTreeSet<u64>) -> io::Result<()> {
        self.remove_if(|(_, held)| id_of(held).is_some_and(|id| id != 0 && !ids.contains(&id)))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if self.known.get(key).is_none_or(|held| held != value) {
            self.pods.update(key, value, Update::Any)?;
            self.known.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }

    fn remove_if(&mut self, is_gone: impl Fn(&(&Vec<u8>, &Vec<u8>)) -> bool) -> io::Result<()> {
        let gone: Vec<_> = self
            .known
            .iter()
            .filter(is_gone)
            .map(|(key, _)| key.clone())
            .collect();
        gone.iter().try_for_each(|key| self.remove(key))
    }

    fn remove(&mut self, key: &[u8]) -> io::Result<()> {
        if self.known.contains_key(key) {
            self.pods.delete(key)?;
            self.known.remove(key);
        }
        Ok(())
    }
}

/// The program's object, relocated by the kernel's types. That takes most of the time of a start, and needs no maps.
pub(super) fn read() -> Result<Object, ReadError> {
    let mut object = Object::read(OBJECT)?;
    let kernel = Btf::from_sys_fs()?;
    object.relocate_fields(&kernel)?;
    let instructions = object.instructions(PROGRAM).ok_or(ReadError::Missing)?;
    let functions = FUNCTIONS.map(|name| kernel.id_by_type_name_kind(name, BtfKind::Func));
    for (number, id) in (FIRST_FUNCTION..).zip(functions) {
        name_function(instructions, number, id?);
    }
    name_type(
        instructions,
        kernel.id_by_type_name_kind("nf_conn", BtfKind::Struct)?,
    );
    Ok(object)
}

fn load(object: Result<Object, ReadError>, maps: &Path) -> Result<OwnedFd, LoadError> {
    let mut object = object?;
    object.link(maps)?;
    let loaded = object.load(PROGRAM, syscall::NETFILTER);
    Ok(loaded.ok_or(ReadError::Missing)??)
}

/// Writes the number of the kernel's type of connections.
fn name_type(instructions: &mut [bpf_insn], id: u32) {
    for constant in instructions
        .iter_mut()
        .filter(|constant| constant.imm == TYPE_OF_CONNECTION)
    {
        constant.imm = i32::try_from(id).expect("types are numbered from 1");
    }
}

/// Calls a function of the kernel where a number stands for it.
fn name_function(instructions: &mut [bpf_insn], number: i32, function: u32) {
    // BPF_JMP | BPF_CALL; of a helper where the source register is 0, of the kernel's function with this id where it is 2.
    const CALL: u8 = 0x85;
    const BPF_PSEUDO_KFUNC_CALL: u8 = 2;
    for call in instructions
        .iter_mut()
        .filter(|call| call.code == CALL && call.src_reg() == 0 && call.imm == number)
    {
        call.set_src_reg(BPF_PSEUDO_KFUNC_CALL);
        call.imm = i32::try_from(function).expect("types are numbered from 1");
    }
}
