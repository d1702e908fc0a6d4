//! What is asked: names that are in the cache, names that are in none, and what pods of a cluster ask.

/// The types.
pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;

/// The questions for the addresses of `n<first>.<zone>`, `n<first + 1>.<zone>`, ….
pub(crate) fn of_numbers(zone: &str, numbers: impl Iterator<Item = u32>) -> Vec<Vec<u8>> {
    numbers
        .map(|number| question(&format!("n{number}.{zone}"), A))
        .collect()
}

/// A query; an upstream of ours tells by its name what its answer is.
pub(crate) fn question(name: &str, kind: u16) -> Vec<u8> {
    // RFC 1035 section 4.1.1: an id, RD, one question.
    let mut octets = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        octets.push(u8::try_from(label.len()).expect("labels of a bench are short"));
        octets.extend_from_slice(label.as_bytes());
    }
    octets.push(0);
    octets.extend_from_slice(&kind.to_be_bytes());
    octets.extend_from_slice(&[0, 1]);
    octets
}

/// The same by a client that takes so long a datagram (RFC 6891).
pub(crate) fn with_room(mut octets: Vec<u8>, size: u16) -> Vec<u8> {
    octets[11] = 1;
    octets.extend_from_slice(&[0, 0, 41]);
    octets.extend_from_slice(&size.to_be_bytes());
    octets.extend_from_slice(&[0; 6]);
    octets
}

/// Names outside of the cluster that its pods look up.
const OUTSIDE: usize = 10_000;
/// Their domains stand below these, as often as much-visited names do or those that are like them: search lists end in them, and
/// whoever knows that there is no `com.<namespace>.svc.cluster.local` need not ask below it. One of them is not on dnsd's
/// list of public labels.
const TOPS: [(&str, usize); 10] = [
    ("com", 60),
    ("net", 8),
    ("org", 7),
    ("io", 6),
    ("de", 4),
    ("uk", 4),
    ("co", 3),
    ("ru", 3),
    ("ai", 3),
    ("dev", 2),
];
/// Namespaces of a cluster, and services of each.
const NAMESPACES: usize = 20;
const SERVICES: usize = 50;

/// What pods of a cluster with `ndots: 5` ask: half of the questions are for names outside, each of which is tried with
/// four endings first, for A and AAAA, and some names are asked for much more than others (Zipf, s = 1); the other half
/// is for services, by their whole names.
pub(crate) fn of_cluster(count: usize) -> Vec<Vec<u8>> {
    let mut chance = Chance(0x2545_f491_4f6c_dd1d);
    let weights: Vec<f64> = (1..=OUTSIDE)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / as_f64(rank);
            Some(*sum)
        })
        .collect();
    let whole = weights[OUTSIDE - 1];
    let mut asked = Vec::with_capacity(count + 10);
    let mut outside = 0;
    while asked.len() < count {
        let namespace = chance.below(NAMESPACES);
        if outside * 2 > asked.len() {
            let service = format!(
                "s{}.ns{}.svc.cluster.local",
                chance.below(SERVICES),
                chance.below(NAMESPACES)
            );
            asked.extend([A, AAAA].map(|kind| question(&service, kind)));
            continue;
        }
        let drawn = as_f64(chance.below(1 << 30)) / as_f64(1 << 30) * whole;
        let number = weights.partition_point(|sum| *sum < drawn);
        let name = format!("n{number}.mix.{}", top_of(number));
        let endings = [
            format!(".ns{namespace}.svc.cluster.local"),
            ".svc.cluster.local".to_owned(),
            ".cluster.local".to_owned(),
            ".ec2.internal".to_owned(),
            String::new(),
        ];
        for ending in endings {
            asked.extend([A, AAAA].map(|kind| question(&format!("{name}{ending}"), kind)));
            outside += 2;
        }
    }
    asked.truncate(count);
    asked
}

/// What the name of this number stands below: always the same, and not by its rank.
fn top_of(number: usize) -> &'static str {
    let all: usize = TOPS.iter().map(|(_, weight)| weight).sum();
    // Knuth, The Art of Computer Programming 3, section 6.4: multiplied by a large odd number, neighbours are far apart.
    let mut place = number.wrapping_mul(2_654_435_761) / 97 % all;
    for (top, weight) in TOPS {
        if place < weight {
            return top;
        }
        place -= weight;
    }
    TOPS[0].0
}

/// Numbers that look like chance, the same in every run (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % most
    }
}

#[expect(clippy::cast_precision_loss, reason = "all numbers here are below 2^31")]
fn as_f64(number: usize) -> f64 {
    number as f64
}
