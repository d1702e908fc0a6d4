//! What may lead packets past the packet filter: a flowtable forwards the packets of an open flow before any hook of
//! iptables sees them, and a program on a link (XDP, tc, tcx) may redirect or rewrite what it likes. They are told,
//! never touched.
//!
//! Requests are those of `linux/netfilter/nf_tables.h`, `linux/pkt_sched.h`, `linux/if_link.h` and `linux/bpf.h`.

#![allow(unsafe_code, reason = "bpf(2) has no wrapper in nix")]

use std::fmt;

use nix::errno::Errno;
use nix::libc::{RTM_GETLINK, RTM_NEWLINK};
use nix::sys::socket::SockProtocol;

use crate::links::LINK_HEADER;
use crate::netlink::{Attributes, DUMP, Error, MalformedMessage, ReplyPart, Request, Socket};
use crate::{bpf, dns_permits};

/// The kinds of fast paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A flowtable of nf_tables.
    Flowtable,
    /// A filter of tc at the ingress or the egress of a link.
    Tc,
    /// A BPF program there, without tc (Linux 6.6).
    Tcx,
    /// A BPF program in front of everything else.
    Xdp,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Flowtable, Self::Tc, Self::Tcx, Self::Xdp];

    /// One word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Flowtable => "flowtable",
            Self::Tc => "tc",
            Self::Tcx => "tcx",
            Self::Xdp => "xdp",
        }
    }
}

/// A fast path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FastPath {
    pub kind: Kind,
    /// Its name, or what it is, as its owner would know it.
    pub name: String,
    /// The interfaces that it is about.
    pub interfaces: Vec<String>,
}

impl fmt::Display for FastPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.interfaces.join(", ");
        match self.kind {
            Kind::Flowtable => write!(f, "the flowtable {} ({on})", self.name),
            Kind::Tc => write!(f, "the tc filter {} on {on}", self.name),
            Kind::Tcx => write!(f, "the BPF program {} (tcx) on {on}", self.name),
            Kind::Xdp => write!(f, "the BPF program {} (XDP) on {on}", self.name),
        }
    }
}

/// Finds the fast paths of one network namespace: that of the thread which opened it.
#[derive(Debug)]
pub struct FastPaths {
    route: Socket,
    netfilter: Socket,
}

impl FastPaths {
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            route: Socket::open(SockProtocol::NetlinkRoute)?,
            netfilter: Socket::open(SockProtocol::NetlinkNetFilter)?,
        })
    }

    /// All flowtables. A kernel without nf_tables has none.
    pub fn flowtables(&mut self) -> Result<Vec<FastPath>, Error> {
        let request = Request::netfilter("flowtables", NF_TABLES, GET_FLOWTABLE, DUMP, 0);
        match self.netfilter.ask(&request, read_flowtable) {
            Err(error) if error.refusal_code().is_some_and(is_unknown) => Ok(Vec::new()),
            outcome => outcome,
        }
    }

    /// What is on a link.
    pub fn on(&mut self, index: u32, interface: &str) -> Result<Vec<FastPath>, Error> {
        let mut found: Vec<(Kind, String)> = Vec::new();
        found.extend(self.xdp(index)?.map(|id| (Kind::Xdp, format!("number {id}"))));
        for parent in [CLSACT_INGRESS, CLSACT_EGRESS] {
            let filters = self.filters(index, parent)?;
            found.extend(filters.into_iter().map(|name| (Kind::Tc, name)));
        }
        for at in [TCX_INGRESS, TCX_EGRESS] {
            let programs = programs(index, at);
            found.extend(
                programs
                    .into_iter()
                    .filter(|id| !is_permitted(*id))
                    .map(|id| (Kind::Tcx, format!("number {id}"))),
            );
        }
        // A qdisc of the kind ingress shows its filters at both ends.
        found.sort();
        found.dedup();
        let path = |(kind, name)| FastPath {
            kind,
            name,
            interfaces: vec![interface.to_owned()],
        };
        Ok(found.into_iter().map(path).collect())
    }

    fn xdp(&mut self, index: u32) -> Result<Option<u32>, Error> {
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        let request = Request::new("programs of an interface", RTM_GETLINK, 0, &header);
        match self.route.ask(&request, read_xdp) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn filters(&mut self, index: u32, parent: u32) -> Result<Vec<String>, Error> {
        let mut header = [0; FILTER_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[12..16].copy_from_slice(&parent.to_ne_bytes());
        let request = Request::new("filters of an interface", RTM_GETTFILTER, DUMP, &header);
        match self.route.ask(&request, read_filter) {
            Err(error) if is_gone(&error) || error.refusal_code().is_some_and(is_unknown) => Ok(Vec::new()),
            outcome => outcome,
        }
    }
}

const NF_TABLES: u8 = 10;
const GET_FLOWTABLE: u8 = 23;
const NEW_FLOWTABLE: u16 = 10 << 8 | 22;
const RTM_GETTFILTER: u16 = 46;
const RTM_NEWTFILTER: u16 = 44;
/// `struct tcmsg`: family, padding, interface, handle, parent, info.
const FILTER_HEADER: usize = 20;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` and `…_EGRESS`.
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;
/// `BPF_TCX_INGRESS` and `BPF_TCX_EGRESS` of `enum bpf_attach_type`.
const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;

/// Whether it is dnsd's program, which answers only those whom the enforcer permits.
fn is_permitted(program: u32) -> bool {
    bpf::program_name(program).is_ok_and(|name| name == dns_permits::PROGRAM)
}

fn is_gone(error: &Error) -> bool {
    error.refusal_code() == Some(nix::libc::ENODEV)
}

/// What kernels answer that do not know the question.
fn is_unknown(code: i32) -> bool {
    use nix::libc::{EINVAL, EOPNOTSUPP, EPROTONOSUPPORT};
    [EINVAL, EOPNOTSUPP, EPROTONOSUPPORT].contains(&code)
}

fn read_flowtable(answer: ReplyPart<'_>) -> Result<Option<FastPath>, MalformedMessage> {
    const TABLE: u16 = 1;
    const NAME: u16 = 2;
    const HOOK: u16 = 3;
    const HOOK_DEVICES: u16 = 3;
    const DEVICE_NAME: u16 = 1;
    if answer.kind != NEW_FLOWTABLE {
        return Ok(None);
    }
    let (_, attributes) = answer.split::<4>()?;
    let name = |kind| {
        attributes
            .text(kind)
            .ok_or(MalformedMessage("a flowtable without a name"))
    };
    let devices = attributes.nest(HOOK)?.nest(HOOK_DEVICES)?;
    let devices = devices.iter().filter(|(kind, _)| *kind == DEVICE_NAME);
    Ok(Some(FastPath {
        kind: Kind::Flowtable,
        name: format!("{} {}", name(TABLE)?, name(NAME)?),
        interfaces: devices.map(|(_, bytes)| text(bytes)).collect(),
    }))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The number of the program; 0 where there are several, in different modes.
fn read_xdp(answer: ReplyPart<'_>) -> Result<Option<u32>, MalformedMessage> {
    const XDP: u16 = 43;
    const ATTACHED: u16 = 2;
    const PROGRAM: u16 = 4;
    if answer.kind != RTM_NEWLINK {
        return Ok(None);
    }
    let (_, attributes) = answer.split::<LINK_HEADER>()?;
    let xdp = attributes.nest(XDP)?;
    let is_attached = xdp.byte(ATTACHED).is_some_and(|mode| mode != 0);
    Ok(is_attached.then(|| xdp.native32(PROGRAM).unwrap_or(0)))
}

fn read_filter(answer: ReplyPart<'_>) -> Result<Option<String>, MalformedMessage> {
    const KIND: u16 = 1;
    const OPTIONS: u16 = 2;
    if answer.kind != RTM_NEWTFILTER {
        return Ok(None);
    }
    let (_, attributes) = answer.split::<FILTER_HEADER>()?;
    let Some(kind) = attributes.text(KIND) else {
        return Ok(None);
    };
    let name = match kind.as_str() {
        "bpf" => program_of(&attributes.nest(OPTIONS)?),
        _ => None,
    };
    Ok(Some(
        name.map_or_else(|| kind.clone(), |name| format!("{kind} {name}")),
    ))
}

fn program_of(options: &Attributes<'_>) -> Option<String> {
    const BPF_NAME: u16 = 7;
    options.text(BPF_NAME)
}

/// The programs of a place; none where the kernel does not know such places, or does not tell us.
fn programs(index: u32, place: u32) -> Vec<u32> {
    const MOST: usize = 64;
    const BPF_PROG_QUERY: libc::c_long = 16;
    /// The part of `union bpf_attr` that `BPF_PROG_QUERY` takes.
    #[repr(C)]
    struct Query {
        interface: u32,
        place: u32,
        flags: u32,
        attach_flags: u32,
        ids: u64,
        count: u32,
        padding: u32,
        not_asked: [u64; 4],
    }
    let mut ids = [0_u32; MOST];
    let mut query = Query {
        interface: index,
        place,
        flags: 0,
        attach_flags: 0,
        ids: u64::try_from(ids.as_mut_ptr().expose_provenance()).expect("a pointer is at most 64 bits"),
        count: u32::try_from(MOST).expect("64 is small"),
        padding: 0,
        not_asked: [0; 4],
    };
    // SAFETY: the kernel reads and writes the query, and writes at most `count` numbers into `ids`; both outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, &raw mut query, size_of::<Query>()) };
    match Errno::result(result) {
        Ok(_) | Err(Errno::ENOSPC) => {
            let count = usize::try_from(query.count).unwrap_or(MOST).min(MOST);
            ids[..count].to_vec()
        }
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct nlattr`, its payload, and the gap to the next one.
    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len() + 4).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// As the kernel lists `flowtable inet filter fast { hook ingress priority 0; devices = { eth0, veth1 }; }`
    /// (`nf_tables_fill_flowtable_info` of net/netfilter/nf_tables_api.c).
    fn flowtable() -> Vec<u8> {
        const NESTED: u16 = 0x8000;
        let devices = [attribute(1, b"eth0\0"), attribute(1, b"veth1\0")].concat();
        let hook = [
            attribute(1, &[0; 4]),
            attribute(2, &[0; 4]),
            attribute(3 | NESTED, &devices),
        ]
        .concat();
        let header = [1, 0, 0, 0].to_vec();
        [
            header,
            attribute(1, b"filter\0"),
            attribute(2, b"fast\0"),
            attribute(4, &[0, 0, 0, 1]),
            attribute(5, &[0, 0, 0, 0, 0, 0, 0, 7]),
            attribute(3 | NESTED, &hook),
        ]
        .concat()
    }

    fn answer(kind: u16, body: &[u8]) -> ReplyPart<'_> {
        ReplyPart { kind, port: 0, body }
    }

    #[test]
    fn a_flowtable_is_told_with_its_table_and_its_interfaces() {
        let body = flowtable();
        let found = read_flowtable(answer(NEW_FLOWTABLE, &body)).unwrap().unwrap();
        assert_eq!(found.to_string(), "the flowtable filter fast (eth0, veth1)");
        assert_eq!(found.interfaces, ["eth0", "veth1"]);
        assert_eq!(read_flowtable(answer(NEW_FLOWTABLE + 1, &body)).unwrap(), None);
    }

    #[test]
    fn a_flowtable_that_is_cut_short_is_malformed() {
        let body = flowtable();
        for cut in 0..12 {
            assert!(
                read_flowtable(answer(NEW_FLOWTABLE, &body[..cut])).is_err(),
                "{cut}"
            );
        }
    }
}
