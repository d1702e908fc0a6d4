//! A rule from its text to the expressions that iptables makes of it: protocol, addresses, interfaces, matches as they are said, the
//! counter, the target. iptables has interfaces in front; their names are compared in 60 ns, which a packet with another address is spared
//! here. What is not known here is not guessed: half a rule would be another one.

use super::expression::{Base, Comparison, Expression, Meta, Verdict};
use super::extension::{self, FlowSource};
use super::tokens::{Tokens, UnsupportedToken};
use crate::netlink::Request;
use crate::{Family, Transport};
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// A rule as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    expressions: Vec<Expression>,
    /// What the matches of `x_tables` are told of the rule (`NFTA_RULE_COMPAT`); 0 for any.
    protocol: u8,
    /// A remark that is kept beside the expressions (`NFTA_RULE_USERDATA`).
    remark: Option<String>,
}

/// Which index each set has that a batch names.
pub(super) type SetIndices<'a> = HashMap<&'a str, u16>;

const RULE_EXPRESSIONS: u16 = 4;
const RULE_COMPAT: u16 = 5;
const RULE_USERDATA: u16 = 7;
/// The longest remark that user data hold (`NFT_USERDATA_MAXLEN` of linux/netfilter/nf_tables.h), without its head and its NUL.
const LONGEST_REMARK: usize = 256 - 3;

impl Rule {
    /// Reads what stands behind the name of the chain.
    pub(super) fn read(
        text: &str,
        family: Family,
        counted: [u64; 2],
        sets: &SetIndices<'_>,
    ) -> Result<Self, UnsupportedToken> {
        let mut reading = RuleParser {
            family,
            sets,
            words: Tokens::of(text),
            protocol: None,
            interfaces: [None, None],
            addresses: [None, None],
            matches: Vec::new(),
            remark: None,
            target: None,
        };
        reading.read()?;
        reading.finish(counted)
    }

    pub(super) fn put(&self, message: Request) -> Request {
        let message = message.nest(RULE_EXPRESSIONS, |list| {
            self.expressions
                .iter()
                .fold(list, |list, expression| expression.put(list))
        });
        let message = message.nest(RULE_COMPAT, |compat| {
            compat.plain_be32(1, u32::from(self.protocol)).plain_be32(2, 0)
        });
        match &self.remark {
            Some(remark) => message.bytes(RULE_USERDATA, &user_data(remark)),
            None => message,
        }
    }
}

/// As libnftnl writes a remark: its type (`NFTNL_UDATA_RULE_COMMENT`), its length, its text with a NUL.
fn user_data(remark: &str) -> Vec<u8> {
    let length = u8::try_from(remark.len() + 1).expect("a remark is short");
    let head = [0, length].into_iter();
    head.chain(remark.bytes()).chain([0]).collect()
}

struct RuleParser<'a> {
    family: Family,
    sets: &'a SetIndices<'a>,
    words: Tokens<'a>,
    protocol: Option<u8>,
    interfaces: [Option<String>; 2],
    addresses: [Option<(bool, IpNet)>; 2],
    matches: Vec<Expression>,
    /// What was remarked behind the last of them.
    remark: Option<String>,
    target: Option<Expression>,
}

impl RuleParser<'_> {
    fn read(&mut self) -> Result<(), UnsupportedToken> {
        loop {
            let holds = self.words.holds();
            let Some(word) = self.words.next()? else {
                return if holds {
                    Ok(())
                } else {
                    Err(UnsupportedToken::word("!"))
                };
            };
            match (&*word, holds) {
                ("-s", holds) => self.address(0, holds)?,
                ("-d", holds) => self.address(1, holds)?,
                ("-i", true) => self.interface(0)?,
                ("-o", true) => self.interface(1)?,
                ("-p", true) => self.protocol()?,
                ("-m", true) => {
                    let name = self.words.need()?;
                    // One that others stand behind keeps its place among them.
                    let before = self.remark.take();
                    self.matches.extend(before.as_deref().map(extension::comment));
                    let found = self.condition(&name)?;
                    self.matches.extend(found);
                }
                ("-j", true) => {
                    let name = self.words.need()?;
                    let target = self.target(&name)?;
                    once(&mut self.target, target, "-j")?;
                }
                ("-g", true) => {
                    let chain = self.words.need()?.into_owned();
                    once(&mut self.target, Expression::Verdict(Verdict::Goto(chain)), "-g")?;
                }
                (other, _) => return Err(UnsupportedToken::word(other)),
            }
        }
    }

    fn address(&mut self, side: usize, holds: bool) -> Result<(), UnsupportedToken> {
        let word = self.words.need()?;
        let net: IpNet = word.parse().map_err(|_not_one| UnsupportedToken::word(&word))?;
        let is_whole = net.prefix_len() > 0 && net.trunc() == net;
        if Family::of(net.addr()) != self.family || !is_whole {
            return Err(UnsupportedToken::word(&word));
        }
        once(&mut self.addresses[side], (holds, net), &word)
    }

    fn interface(&mut self, side: usize) -> Result<(), UnsupportedToken> {
        let word = self.words.need()?;
        if word.len() > 15 || word == "+" {
            return Err(UnsupportedToken::word(&word));
        }
        once(&mut self.interfaces[side], word.to_string(), &word)
    }

    fn protocol(&mut self) -> Result<(), UnsupportedToken> {
        let word = self.words.need()?;
        let transport = Transport::ALL.into_iter().find(|known| known.name() == word);
        let number = match (&*word, self.family, transport) {
            (_, _, Some(transport)) => transport.number(),
            ("icmp", Family::V4, None) => 1,
            ("ipv6-icmp", Family::V6, None) => ICMP_V6,
            (other, _, None) => return Err(UnsupportedToken::word(other)),
        };
        once(&mut self.protocol, number, &word)
    }

    fn condition(&mut self, name: &str) -> Result<Vec<Expression>, UnsupportedToken> {
        let one = |expression| Ok(vec![expression]);
        match name {
            "set" => one(self.set()?),
            "comment" => self.comment(),
            "conntrack" => one(self.conntrack()?),
            "connmark" => {
                let holds = self.words.holds();
                self.words.expect("--mark")?;
                let (value, mask) = mark(&self.words.need()?)?;
                one(extension::connmark(value, mask, holds))
            }
            "mark" => self.mark(),
            "addrtype" => one(self.address_type()?),
            "rpfilter" => one(extension::reverse_path()),
            "owner" => {
                let holds = self.words.holds();
                self.words.expect("--socket-exists")?;
                one(extension::of_socket(holds))
            }
            "physdev" => one(self.bridge_port()?),
            "limit" => one(self.limit()?),
            "tcp" => self.ports(Transport::Tcp),
            "udp" => self.ports(Transport::Udp),
            "sctp" => self.ports(Transport::Sctp),
            "icmp6" if self.protocol == Some(ICMP_V6) => {
                self.words.expect("--icmpv6-type")?;
                one(extension::icmp_v6(number(&self.words.need()?)?))
            }
            other => Err(UnsupportedToken::word(other)),
        }
    }

    fn set(&mut self) -> Result<Expression, UnsupportedToken> {
        let holds = self.words.holds();
        self.words.expect("--match-set")?;
        let name = self.words.need()?;
        let index = *self
            .sets
            .get(&*name)
            .ok_or_else(|| UnsupportedToken(format!("the set {name}, which is not there")))?;
        let sides = self.words.need()?;
        let is_source = |side| match side {
            "src" => Ok(true),
            "dst" => Ok(false),
            other => Err(UnsupportedToken::word(other)),
        };
        let sides = sides.split(',').map(is_source).collect::<Result<Vec<_>, _>>()?;
        if sides.len() > 2 {
            return Err(UnsupportedToken("a set of so many dimensions".to_owned()));
        }
        Ok(extension::set(index, &sides, holds))
    }

    /// A remark is kept as nft keeps it, which the programs list as their own match: that one is 256 octets which each packet that
    /// comes so far is led through, and which the kernel walks at each change of the table.
    fn comment(&mut self) -> Result<Vec<Expression>, UnsupportedToken> {
        self.words.expect("--comment")?;
        let text = self.words.need()?;
        if text.len() > 255 || text.contains('\0') {
            return Err(UnsupportedToken::word(&text));
        }
        if text.is_empty() || text.len() > LONGEST_REMARK {
            return Ok(vec![extension::comment(&text)]);
        }
        self.remark = Some(text.into_owned());
        Ok(Vec::new())
    }

    fn conntrack(&mut self) -> Result<Expression, UnsupportedToken> {
        let holds = self.words.holds();
        self.words.expect("--ctstate")?;
        let names = self.words.need()?;
        let mut states = 0;
        for name in names.split(',') {
            states |= extension::state(name).ok_or_else(|| UnsupportedToken::word(name))?;
        }
        let original = self.words.option("--ctorigsrc")?;
        let reply = self.words.option("--ctreplsrc")?;
        let source = match (original, reply) {
            (None, None) => None,
            (Some(address), None) => Some(FlowSource::Original(self.host(&address)?)),
            (None, Some(address)) => Some(FlowSource::Reply(self.host(&address)?)),
            (Some(_), Some(address)) => return Err(UnsupportedToken::word(&address)),
        };
        let is_reply = match self.words.option("--ctdir")?.as_deref() {
            None => None,
            Some("REPLY") => Some(true),
            Some("ORIGINAL") => Some(false),
            Some(other) => return Err(UnsupportedToken::word(other)),
        };
        Ok(extension::conntrack(states, source, is_reply, holds))
    }

    /// An address of the family without a mask.
    fn host(&self, word: &str) -> Result<IpAddr, UnsupportedToken> {
        let address: IpAddr = word.parse().map_err(|_not_one| UnsupportedToken::word(word))?;
        if Family::of(address) == self.family && !address.is_unspecified() {
            Ok(address)
        } else {
            Err(UnsupportedToken::word(word))
        }
    }

    fn mark(&mut self) -> Result<Vec<Expression>, UnsupportedToken> {
        let holds = self.words.holds();
        self.words.expect("--mark")?;
        let (value, mask) = mark(&self.words.need()?)?;
        let mut steps = vec![Expression::Meta(Meta::Mark)];
        if mask != u32::MAX {
            steps.push(Expression::Mask(mask.to_ne_bytes().to_vec()));
        }
        steps.push(Expression::Compare(
            Comparison::of(holds),
            value.to_ne_bytes().to_vec(),
        ));
        Ok(steps)
    }

    fn address_type(&mut self) -> Result<Expression, UnsupportedToken> {
        let holds = self.words.holds();
        let side = self.words.need()?;
        let is_source = match &*side {
            "--src-type" => true,
            "--dst-type" => false,
            other => return Err(UnsupportedToken::word(other)),
        };
        let name = self.words.need()?;
        let kind = extension::address_type(&name).ok_or_else(|| UnsupportedToken::word(&name))?;
        Ok(extension::of_address_type(kind, is_source, holds))
    }

    fn bridge_port(&mut self) -> Result<Expression, UnsupportedToken> {
        let holds = self.words.holds();
        let side = self.words.need()?;
        let is_input = match &*side {
            "--physdev-in" => true,
            "--physdev-out" => false,
            other => return Err(UnsupportedToken::word(other)),
        };
        let name = self.words.need()?;
        if name.len() > 15 || name.ends_with('+') {
            return Err(UnsupportedToken::word(&name));
        }
        Ok(extension::bridge_port(&name, is_input, holds))
    }

    fn limit(&mut self) -> Result<Expression, UnsupportedToken> {
        /// What iptables takes where none is said (`XT_LIMIT_BURST`).
        const USUAL: u32 = 5;
        /// `XT_LIMIT_SCALE`: the rate is kept as an interval of this part of a second.
        const SCALE: u64 = 10_000;
        self.words.expect("--limit")?;
        let word = self.words.need()?;
        let rate: u64 = number(word.strip_suffix("/sec").unwrap_or(&word))?;
        if !word.ends_with("/sec") || !(1..=SCALE).contains(&rate) {
            return Err(UnsupportedToken::word(&word));
        }
        let burst = self.words.option("--limit-burst")?;
        let burst = burst.map_or(Ok(USUAL), |burst| number(&burst))?;
        let rate = SCALE / (SCALE / rate);
        Ok(Expression::Limit { rate, burst })
    }

    fn ports(&mut self, of: Transport) -> Result<Vec<Expression>, UnsupportedToken> {
        if self.protocol != Some(of.number()) {
            return Err(UnsupportedToken::word(of.name()));
        }
        let source = self.words.option("--sport")?;
        let source = source.map(|range| ports(&range)).transpose()?;
        let destination = self.words.option("--dport")?;
        let destination = destination.map(|range| ports(&range)).transpose()?;
        match (of, source, destination) {
            (_, None, None) => Err(UnsupportedToken::word(of.name())),
            (Transport::Sctp, source, destination) => Ok(vec![extension::sctp(source, destination)]),
            (Transport::Tcp | Transport::Udp, Some([from, to]), Some([first, last]))
                if from == to && first == last && from != 0 && first != 0 =>
            {
                let both = [from.to_be_bytes(), first.to_be_bytes()].concat();
                let compared = Expression::Compare(Comparison::Equal, both);
                Ok(vec![transport(0, 4), compared])
            }
            (Transport::Tcp | Transport::Udp, source, destination) => {
                let sides = [(0, source), (2, destination)].into_iter();
                let asked = sides.filter_map(|(offset, range)| Some((offset, range?)));
                Ok(asked
                    .flat_map(|(offset, range)| [transport(offset, 2), within(range)])
                    .collect())
            }
        }
    }

    fn target(&mut self, name: &str) -> Result<Expression, UnsupportedToken> {
        Ok(match name {
            "ACCEPT" => Expression::Verdict(Verdict::Accept),
            "DROP" => Expression::Verdict(Verdict::Drop),
            "RETURN" => Expression::Verdict(Verdict::Return),
            "CONNMARK" => {
                let (value, mask) = self.set_mark()?;
                extension::set_connmark(value, mask)
            }
            "MARK" => {
                let (value, mask) = self.set_mark()?;
                extension::set_mark(value, mask)
            }
            "REJECT" => {
                self.words.expect("--reject-with")?;
                let with = self.words.need()?;
                extension::reject(self.family, &with).ok_or_else(|| UnsupportedToken::word(&with))?
            }
            "NFLOG" => self.nflog()?,
            "NOTRACK" => extension::no_track(),
            // One that is not there is refused by the kernel.
            chain => Expression::Verdict(Verdict::Jump(chain.to_owned())),
        })
    }

    fn set_mark(&mut self) -> Result<(u32, u32), UnsupportedToken> {
        self.words.expect("--set-xmark")?;
        mark(&self.words.need()?)
    }

    fn nflog(&mut self) -> Result<Expression, UnsupportedToken> {
        let prefix = self.words.option("--nflog-prefix")?.unwrap_or_default();
        let group = self.words.option("--nflog-group")?;
        let group = group.map_or(Ok(0), |group| number(&group))?;
        if prefix.len() > 63 {
            return Err(UnsupportedToken::word(&prefix));
        }
        Ok(Expression::Log {
            prefix: prefix.into_owned(),
            group,
        })
    }

    fn finish(self, [packets, octets]: [u64; 2]) -> Result<Rule, UnsupportedToken> {
        let mut expressions = Vec::with_capacity(8 + self.matches.len());
        if let Some(protocol) = self.protocol {
            expressions.push(Expression::Meta(Meta::Protocol));
            expressions.push(Expression::Compare(Comparison::Equal, vec![protocol]));
        }
        for (side, address) in self.addresses.into_iter().enumerate() {
            expressions.extend(
                address
                    .into_iter()
                    .flat_map(|(holds, net)| within_net(side, holds, net)),
            );
        }
        let names = [Meta::InputName, Meta::OutputName]
            .into_iter()
            .zip(self.interfaces);
        for (meta, name) in names.filter_map(|(meta, name)| Some((meta, name?))) {
            expressions.push(Expression::Meta(meta));
            expressions.push(Expression::Compare(Comparison::Equal, interface(&name)));
        }
        expressions.extend(self.matches);
        expressions.push(Expression::Counter { packets, octets });
        expressions.extend(self.target);
        Ok(Rule {
            expressions,
            protocol: self.protocol.unwrap_or(0),
            remark: self.remark,
        })
    }
}

const ICMP_V6: u8 = 58;

/// What is said twice is not ours.
fn once<T>(slot: &mut Option<T>, value: T, word: &str) -> Result<(), UnsupportedToken> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(UnsupportedToken::word(word)),
    }
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, UnsupportedToken> {
    word.parse().map_err(|_not_one| UnsupportedToken::word(word))
}

/// `0x5/0xfff`; without a mask all bits count.
fn mark(word: &str) -> Result<(u32, u32), UnsupportedToken> {
    let hexadecimal = |text: &str| {
        let digits = text.strip_prefix("0x")?;
        u32::from_str_radix(digits, 16).ok()
    };
    let (value, mask) = match word.split_once('/') {
        Some((value, mask)) => (hexadecimal(value), hexadecimal(mask)),
        None => (hexadecimal(word), Some(u32::MAX)),
    };
    value.zip(mask).ok_or_else(|| UnsupportedToken::word(word))
}

/// `80` or `80:90`.
fn ports(word: &str) -> Result<[u16; 2], UnsupportedToken> {
    let (first, last) = word.split_once(':').unwrap_or((word, word));
    let range = [number(first)?, number(last)?];
    if range[0] > range[1] || range == [0, u16::MAX] {
        return Err(UnsupportedToken::word(word));
    }
    Ok(range)
}

fn transport(offset: u32, length: u32) -> Expression {
    Expression::Payload {
        base: Base::Transport,
        offset,
        length,
    }
}

fn within([first, last]: [u16; 2]) -> Expression {
    let octets = |port: u16| port.to_be_bytes().to_vec();
    if first == last {
        Expression::Compare(Comparison::Equal, octets(first))
    } else if first == 0 {
        Expression::Compare(Comparison::AtMost, octets(last))
    } else {
        Expression::Range(octets(first), octets(last))
    }
}

/// The name with its NUL, or what names begin with.
fn interface(name: &str) -> Vec<u8> {
    match name.strip_suffix('+') {
        Some(beginning) => beginning.as_bytes().to_vec(),
        None => name.bytes().chain([0]).collect(),
    }
}

/// A prefix of whole octets is compared as far as it goes, another one under its mask.
fn within_net(side: usize, holds: bool, net: IpNet) -> Vec<Expression> {
    let (offsets, octets, mask) = match net {
        IpNet::V4(net) => (
            [12, 16],
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
        IpNet::V6(net) => (
            [8, 24],
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
    };
    let load = |length| Expression::Payload {
        base: Base::Network,
        offset: offsets[side],
        length,
    };
    let compare = |octets| Expression::Compare(Comparison::of(holds), octets);
    let whole = u32::from(net.prefix_len() / 8);
    if net.prefix_len().is_multiple_of(8) {
        let octets = octets[..usize::from(net.prefix_len() / 8)].to_vec();
        return vec![load(whole), compare(octets)];
    }
    let all = u32::from(net.max_prefix_len() / 8);
    vec![load(all), Expression::Mask(mask), compare(octets)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(family: Family, text: &str) -> Result<Rule, UnsupportedToken> {
        Rule::read(text, family, [0, 0], &SetIndices::from([("there", 7)]))
    }

    #[test]
    fn the_last_that_is_ours_to_write_is_written() {
        for text in [
            "-i interface-of-15 -j A",
            "-i veth+ -j A",
            "-s 10.0.0.0/8 ! -d 10.0.0.1/32 -j A",
            "-m set --match-set there src,dst -j A",
            "-m set ! --match-set there src -j A",
            "-m physdev --physdev-in a-port-of-15-os -j A",
            "-m limit --limit 10000/sec -j A",
            "-p tcp -m tcp --sport 0:65534 -j A",
            "-p tcp -m tcp --dport 1:65535 -j A",
            "-p udp -m udp --dport 53 -j A",
            "-m conntrack ! --ctstate NEW,DNAT --ctdir REPLY -j A",
            "-m conntrack --ctstate RELATED --ctorigsrc 10.0.0.2 -j A",
            "-m conntrack --ctstate RELATED --ctreplsrc 10.0.0.2 --ctdir REPLY -j A",
            "-m addrtype ! --dst-type UNICAST -j A",
            "-j NOTRACK",
            "-m rpfilter -j A",
            "-j MARK --set-xmark 0xffffffff/0x0",
            "-g A",
        ] {
            assert!(read(Family::V4, text).is_ok(), "{text}");
        }
        let remark = |length| format!("-m comment --comment {}", "a".repeat(length));
        let prefix = |length| format!("-j NFLOG --nflog-prefix {}", "a".repeat(length));
        for (longest, text) in [(255, &remark as &dyn Fn(usize) -> String), (63, &prefix)] {
            assert!(read(Family::V4, &text(longest)).is_ok(), "{longest}");
            assert!(read(Family::V4, &text(longest + 1)).is_err(), "{longest}");
        }
    }

    /// Half a rule, or one that the programs understand otherwise, would be another rule.
    #[test]
    fn what_is_not_ours_to_write_is_left_to_the_programs() {
        for text in [
            "-i an-interface-of17 -j A",
            "-i an-interfaceof16 -j A",
            "-i + -j A",
            "! -i eth0 -j A",
            "! -o eth0 -j A",
            "-i eth0 -i eth1 -j A",
            "-s 0.0.0.0/0 -j A",
            "-s 10.0.0.1/8 -j A",
            "-s 10.0.0.1 -j A",
            "-s fd00::/8 -j A",
            "-s 10.0.0.0/8 -s 10.0.0.0/8 -j A",
            "! -p tcp -j A",
            "-p tcp -p tcp -j A",
            "-p 6 -j A",
            "-p ipv6-icmp -j A",
            "-p tcp -m udp --dport 53 -j A",
            "-m tcp --dport 53 -j A",
            "-p tcp -m tcp -j A",
            "-p tcp -m tcp --dport 80:79 -j A",
            "-p tcp -m tcp --dport 0:65535 -j A",
            "-p tcp -m tcp --dport 80 --sport 80 -j A",
            "-p tcp -m tcp ! --dport 80 -j A",
            "-p tcp -m tcp --dport http -j A",
            "-p tcp -m tcp --dport 65536 -j A",
            "-m icmp6 --icmpv6-type 135 -j A",
            "-m set --match-set gone src -j A",
            "-m set --match-set there either -j A",
            "-m set --match-set there src,src,src -j A",
            "-m set --match-set there src --return-nomatch -j A",
            "! -m set --match-set there src -j A",
            "-m conntrack --ctstate NONE -j A",
            "-m conntrack --ctstate NEW --ctdir BOTH -j A",
            "-m conntrack --ctstate RELATED --ctorigsrc 10.0.0.0/8 -j A",
            "-m conntrack --ctstate RELATED --ctorigsrc fd00::2 -j A",
            "-m conntrack --ctstate RELATED --ctorigsrc 10.0.0.2 --ctreplsrc 10.0.0.2 -j A",
            "-m conntrack --ctorigsrc 10.0.0.2 -j A",
            "-m connmark --mark 5 -j A",
            "-m mark --mark 0x5/7 -j A",
            "-m mark --mark 0x100000000 -j A",
            "-m addrtype --src-type BROADCAST -j A",
            "-m addrtype --limit-iface-in LOCAL -j A",
            "-m rpfilter --invert -j A",
            "-m rpfilter --loose -j A",
            "-m owner --uid-owner 0 -j A",
            "-m physdev --physdev-in port+ -j A",
            "-m physdev --physdev-in a-port-of-16-oct -j A",
            "-m physdev --physdev-is-in -j A",
            "-m limit --limit 5/min -j A",
            "-m limit --limit 5 -j A",
            "-m limit --limit 0/sec -j A",
            "-m limit --limit 10001/sec -j A",
            "-m limit --limit 5/sec --limit-burst many -j A",
            "-m multiport --dports 80 -j A",
            "-j A -j A",
            "-g A -j A",
            "-g A -g A",
            "! -j A",
            "! -g A",
            "-j A !",
            "-j A ! ",
            "-j",
            "-g",
            "-f -j A",
            "-j MARK --set-mark 0x1",
            "-j CONNMARK --restore-mark",
            "-j REJECT",
            "-j REJECT --reject-with icmp6-adm-prohibited",
            "-j NFLOG --nflog-group 65536",
            "-j NFLOG --nflog-range 5",
        ] {
            assert!(read(Family::V4, text).is_err(), "{text}");
        }
        for text in [
            "-s ::/0 -j A",
            "-s 10.0.0.0/8 -j A",
            "-p icmp -j A",
            "-p ipv6-icmp -m icmp6 --icmpv6-type 135/0 -j A",
            "-p tcp -m icmp6 --icmpv6-type 135 -j A",
            "-j REJECT --reject-with icmp-admin-prohibited",
        ] {
            assert!(read(Family::V6, text).is_err(), "{text}");
        }
    }
}
