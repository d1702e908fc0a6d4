//! Whether iptables sees what goes from port to port of a bridge: `br_netfilter` hands such packets to it, for one bridge
//! or for all of a network namespace.
//!
//! Attributes are those of `linux/if_link.h`.

use std::path::Path;

use nix::libc::{IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, RTM_GETLINK, RTM_NEWLINK};
use nix::sys::socket::SockProtocol;

use crate::Family;
use crate::links::LINK_HEADER;
use crate::netlink::{Error, MalformedMessage, ReplyPart, Request, Socket};

/// For which families iptables is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeNfCalls {
    pub v4: bool,
    pub v6: bool,
}

impl BridgeNfCalls {
    #[must_use]
    pub const fn of(self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    #[must_use]
    pub const fn both(self) -> bool {
        self.v4 && self.v6
    }
}

/// The bridges of one network namespace: that of the thread which opened it.
#[derive(Debug)]
pub struct Bridges {
    socket: Socket,
}

impl Bridges {
    pub fn open() -> Result<Self, Error> {
        Socket::open(SockProtocol::NetlinkRoute).map(|socket| Self { socket })
    }

    /// Whether `br_netfilter` is there; without it, what follows has no effect.
    #[must_use]
    pub fn can_call() -> bool {
        setting(Family::V4).exists()
    }

    /// What holds for all bridges (`net.bridge.bridge-nf-call-…`).
    #[must_use]
    pub fn calls_everywhere() -> BridgeNfCalls {
        let is_on = |family| {
            let text = std::fs::read_to_string(setting(family));
            text.is_ok_and(|text| text.trim() != "0")
        };
        BridgeNfCalls {
            v4: is_on(Family::V4),
            v6: is_on(Family::V6),
        }
    }

    /// What a bridge is set to by itself; none where it is no bridge, or there is none.
    pub fn calls(&mut self, index: u32) -> Result<Option<BridgeNfCalls>, Error> {
        let request = Request::new("settings of a bridge", RTM_GETLINK, 0, &header(index));
        match self.socket.ask(&request, read_calls) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if error.refusal_code() == Some(nix::libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets it for one bridge.
    pub fn call(&mut self, index: u32, family: Family, is_on: bool) -> Result<(), Error> {
        let attribute = match family {
            Family::V4 => CALL_IPTABLES,
            Family::V6 => CALL_IP6TABLES,
        };
        let request =
            Request::new("set a bridge", RTM_NEWLINK, 0, &header(index)).nest(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_KIND, BRIDGE)
                    .nest(IFLA_INFO_DATA, |data| data.byte(attribute, u8::from(is_on)))
            });
        self.socket.tell(&request)
    }
}

const BRIDGE: &str = "bridge";
/// `IFLA_BR_NF_CALL_IPTABLES` and `IFLA_BR_NF_CALL_IP6TABLES`.
const CALL_IPTABLES: u16 = 36;
const CALL_IP6TABLES: u16 = 37;

fn setting(family: Family) -> &'static Path {
    Path::new(match family {
        Family::V4 => "/proc/sys/net/bridge/bridge-nf-call-iptables",
        Family::V6 => "/proc/sys/net/bridge/bridge-nf-call-ip6tables",
    })
}

fn header(index: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

fn read_calls(answer: ReplyPart<'_>) -> Result<Option<BridgeNfCalls>, MalformedMessage> {
    if answer.kind != RTM_NEWLINK {
        return Ok(None);
    }
    let (_, attributes) = answer.split::<LINK_HEADER>()?;
    let info = attributes.nest(IFLA_LINKINFO)?;
    if info.text(IFLA_INFO_KIND).as_deref() != Some(BRIDGE) {
        return Ok(None);
    }
    let data = info.nest(IFLA_INFO_DATA)?;
    let is_on = |attribute| data.byte(attribute).is_some_and(|value| value != 0);
    Ok(Some(BridgeNfCalls {
        v4: is_on(CALL_IPTABLES),
        v6: is_on(CALL_IP6TABLES),
    }))
}
