//! What the upstream answers: it makes an answer of the name that is asked for.

use egret_dnsd::net::Transport;

use crate::questions::{A, AAAA};

/// What is asked.
struct Question<'a> {
    labels: Vec<&'a str>,
    kind: u16,
    /// Where the question ends.
    end: usize,
    /// The largest datagram that the asker takes.
    room: usize,
}

impl<'a> Question<'a> {
    fn read(octets: &'a [u8]) -> Option<Self> {
        let (mut labels, mut at) = (Vec::new(), 12);
        while let length @ 1.. = usize::from(*octets.get(at)?) {
            labels.push(std::str::from_utf8(octets.get(at + 1..at + 1 + length)?).ok()?);
            at += 1 + length;
        }
        let kind = u16::from_be_bytes(*octets.get(at + 1..)?.first_chunk()?);
        let end = at + 5;
        // An OPT stands right behind the question: the root, its type, and the size.
        let room = match octets.get(end..end + 5) {
            Some(&[0, 0, 41, high, low]) => u16::from_be_bytes([high, low]).max(512),
            Some(_) | None => 512,
        };
        Some(Self {
            labels,
            kind,
            end,
            room: room.into(),
        })
    }

    /// Its first label; the root has none.
    fn first(&self) -> &str {
        self.labels.first().copied().unwrap_or_default()
    }

    /// The digits of its first label.
    fn number(&self) -> u32 {
        let digits = self.first().bytes().filter(u8::is_ascii_digit);
        digits.fold(0, |number: u32, digit| {
            number.wrapping_mul(10).wrapping_add(u32::from(digit - b'0'))
        })
    }

    /// Whether it is for a name outside that pods of a cluster look up.
    fn is_outside(&self) -> bool {
        let domain = self.labels.iter().rev().nth(1);
        domain.is_some_and(|label| label.eq_ignore_ascii_case("mix"))
    }

    fn is_below(&self, zone: [&str; 2]) -> bool {
        let last = self.labels.len().saturating_sub(2);
        self.labels[last..]
            .iter()
            .zip(zone)
            .all(|(mine, wanted)| mine.eq_ignore_ascii_case(wanted))
    }
}

/// The records of a name: CNAMEs in front of its addresses, how many of each, and their TTL in seconds.
struct AnswerRecords {
    aliases: u8,
    addresses: u32,
    ttl: u32,
}

/// The answer, if it is a question.
pub(crate) fn answer(octets: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let question = Question::read(octets)?;
    let records = records(&question);
    let mut answer = octets[..question.end].to_vec();
    // QR, RD, RA, NOERROR; one question, and no OPT (RFC 6891 section 7).
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0]);
    match &records {
        Some(records) if records.addresses > 0 => push_records(&mut answer, &question, records),
        Some(_) => push_soa(&mut answer),
        None => {
            answer[3] |= 3;
            push_soa(&mut answer);
        }
    }
    if transport == Transport::Udp && answer.len() > question.room {
        answer.truncate(question.end);
        answer[2] |= 2;
        answer[6..12].fill(0);
    }
    Some(answer)
}

/// The records of a name; none where the name does not exist.
fn records(question: &Question<'_>) -> Option<AnswerRecords> {
    let number = question.number();
    let of = |addresses, ttl| AnswerRecords {
        aliases: 0,
        addresses,
        ttl,
    };
    let is_a = question.kind == A;
    if question.is_below(["cluster", "local"]) {
        return in_cluster(question).map(|addresses| of(addresses, 30));
    }
    if question.is_below(["ec2", "internal"]) {
        return None;
    }
    if question.first().eq_ignore_ascii_case("big") {
        return Some(of(if is_a { 100 } else { 0 }, 3_600));
    }
    if !question.is_outside() {
        return Some(of(u32::from(is_a), 3_600));
    }
    let ttl = 1 + number % 300;
    Some(match number % 100 {
        0..10 => AnswerRecords {
            aliases: 2,
            addresses: 2,
            ttl,
        },
        10..15 => of(if is_a { 25 } else { 8 }, ttl),
        15..50 => of(u32::from(is_a), ttl),
        50..70 => of(4, ttl),
        _rest => of(1, ttl),
    })
}

/// The addresses of a name of the cluster, as CoreDNS' plugin `kubernetes` has them: bases and namespaces exist without any
/// (parse.go, kubernetes.go), services have one, and all else is not there.
fn in_cluster(question: &Question<'_>) -> Option<u32> {
    let labels: Vec<String> = question
        .labels
        .iter()
        .rev()
        .skip(2)
        .map(|it| it.to_lowercase())
        .collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    match labels.as_slice() {
        [] | ["svc"] => Some(0),
        ["svc", namespace] if namespace.starts_with("ns") => Some(0),
        ["svc", namespace, service] if namespace.starts_with("ns") && service.starts_with('s') => {
            Some(u32::from(question.kind == A))
        }
        _absent => None,
    }
}

fn push_records(answer: &mut Vec<u8>, question: &Question<'_>, records: &AnswerRecords) {
    let mut owner = [0xc0, 12];
    for alias in 0..records.aliases {
        // CNAME, IN: a label below the question's name.
        answer.extend_from_slice(&owner);
        answer.extend_from_slice(&[0, 5, 0, 1]);
        answer.extend_from_slice(&records.ttl.to_be_bytes());
        answer.extend_from_slice(&[0, 5]);
        let [high, low] = u16::try_from(answer.len())
            .expect("a short message")
            .to_be_bytes();
        owner = [0xc0 | high, low];
        answer.extend_from_slice(&[2, b'c', b'0' + alias, 0xc0, 12]);
    }
    let [_, _, middle, low] = question.number().to_be_bytes();
    for address in 0..records.addresses {
        let [.., last] = address.to_be_bytes();
        answer.extend_from_slice(&owner);
        answer.extend_from_slice(&question.kind.to_be_bytes());
        answer.extend_from_slice(&[0, 1]);
        answer.extend_from_slice(&records.ttl.to_be_bytes());
        if question.kind == AAAA {
            // RFC 3849.
            answer.extend_from_slice(&[
                0, 16, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, middle, low, last, 1,
            ]);
        } else {
            // RFC 2544, with the number of a name that has one address in three octets.
            let [_, high, middle, low] = (question.number().wrapping_add(address << 12)).to_be_bytes();
            answer.extend_from_slice(&[0, 4, 198, 18 + high % 2, middle, low]);
        }
    }
    let count = u32::from(records.aliases) + records.addresses;
    answer[6..8].copy_from_slice(&u16::try_from(count).expect("a short message").to_be_bytes());
}

/// The root's, for 30 s: mname, rname, five numbers (RFC 1035 section 3.3.13).
fn push_soa(answer: &mut Vec<u8>) {
    answer.extend_from_slice(&[0, 0, 6, 0, 1, 0, 0, 0, 30, 0, 22, 0, 0]);
    for number in [1_u32, 7_200, 900, 86_400, 30] {
        answer.extend_from_slice(&number.to_be_bytes());
    }
    answer[9] = 1;
}
