//! Runs a row, and writes the transcript.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, RecordType};
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, sleep, timeout};

use crate::rows::{Mode, Row, Step};
use crate::server::{PORT, Server, Which};
use crate::support::{address, alias, authority, name, response, with_code};
use crate::transcript;
use crate::world::{Action, ReceivedQuery, Transport, Upstream, framed, read_framed};

/// How long an answer is waited for that comes.
const PATIENCE: Duration = Duration::from_secs(12);
/// How long something is waited for that one of the two configurations does not do.
const ABSENCE: Duration = Duration::from_secs(6);
/// What is written behind an answer, or while a line is read, is part of what is seen.
const SETTLED: Duration = Duration::from_millis(300);
/// CoreDNS looks every ten seconds which connections are old.
const EXPIRY: Duration = Duration::from_secs(16);
const UPSTREAMS: usize = 3;

/// What is seen with each of the two configurations.
pub(crate) async fn both(which: Which, binary: &Path, at: usize, row: &'static Row) -> [String; 2] {
    let third = u8::try_from(at + 1).unwrap();
    let [process, _, _, _] = std::process::id().to_le_bytes();
    let fourth = if which == Which::Dnsd { 1 } else { 101 };
    let place = |side: u8| Ipv4Addr::new(127, 64 + process / 2, third, fourth + side);
    let (plain, with) = tokio::join!(
        Run::one(which, binary, place(0), row, row.plain),
        Run::one(which, binary, place(50), row, row.with)
    );
    [plain, with]
}

struct Run {
    server: Server,
    upstreams: Vec<(Upstream, Arc<Mutex<Mode>>)>,
    /// Words of rows, and what stands for them in this run.
    places: Vec<(String, String)>,
    row: &'static Row,
    /// What upstreams heard is left out.
    forgets: bool,
    /// How many questions the first upstream had heard at the end of the last wait.
    before: usize,
    seen: Vec<String>,
}

/// The Corefile of a row's side.
pub(crate) fn corefile(body: &str) -> String {
    match body.starts_with('.') {
        true => body.to_owned(),
        false => format!(".:{PORT} {{\nbind HERE\n{body}\n}}\n"),
    }
}

pub(crate) fn filled(text: &str, places: &[(String, String)]) -> String {
    places
        .iter()
        .fold(text.to_owned(), |text, (word, place)| text.replace(word, place))
}

impl Run {
    async fn one(which: Which, binary: &Path, place: Ipv4Addr, row: &'static Row, body: &str) -> String {
        let mut upstreams = Vec::new();
        let text = corefile(body);
        let [_, _, c, d] = place.octets();
        let mut places = vec![
            ("HERE".to_owned(), place.to_string()),
            ("THERE".to_owned(), Ipv4Addr::new(127, 62, c, d).to_string()),
        ];
        for number in 1..=UPSTREAMS {
            let own = Ipv4Addr::new(127, 63, c, d);
            let mode = Arc::new(Mutex::new(Mode::Honest));
            let acting = Arc::clone(&mode);
            let upstream = Upstream::at(IpAddr::V4(own), move |asked| {
                deeds(asked, IpAddr::V4(own), number, &acting.lock().unwrap().clone())
            })
            .await;
            places.push((format!("UP{number}"), upstream.address.to_string()));
            places.push((format!("PORT{number}"), upstream.address.port().to_string()));
            upstreams.push((upstream, mode));
        }
        for (number, mode) in row.modes {
            *upstreams[number - 1].1.lock().unwrap() = mode.clone();
        }
        // THERE has HERE in it.
        places.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        let (binary, text) = (binary.to_owned(), filled(&text, &places));
        let server =
            tokio::task::spawn_blocking(move || Server::start(which, &binary, place, &text, row.files))
                .await
                .unwrap();
        let mut run = Self {
            server,
            upstreams,
            places,
            row,
            forgets: false,
            before: 0,
            seen: Vec::new(),
        };
        for step in row.steps {
            run.step(step).await;
        }
        run.write_what_upstreams_heard();
        run.without_places()
    }

    fn without_places(&self) -> String {
        let seen = self
            .seen
            .join("\n")
            .replace(self.server.folder.to_str().unwrap(), "FOLDER");
        let addresses = self.places.iter().filter(|(word, _)| !word.starts_with("PORT"));
        addresses.fold(seen, |seen, (word, place)| seen.replace(place, word))
    }

    async fn step(&mut self, step: &'static Step) {
        match step {
            Step::Ask(question) => {
                let seen = self.ask(question).await;
                self.seen.push(format!("{question} -> {seen}"));
            }
            Step::Again(question) => self.note_again(question).await,
            Step::AskAll(questions) => {
                let asked = questions.iter().map(|question| self.ask(question)).collect();
                let mut seen = crate::world::join_all(asked).await;
                seen.sort();
                self.seen.extend(seen);
            }
            Step::Codes(questions) => {
                let asked = questions.iter().map(|question| self.exchange(question)).collect();
                let answers = crate::world::join_all(asked).await.into_iter().flatten();
                let mut codes: Vec<String> = answers
                    .map(|message| message.metadata.response_code.to_string())
                    .collect();
                codes.sort();
                self.forgets = true;
                self.seen.push(format!("{codes:?}"));
            }
            Step::First { times, question } => self.note_first(*times, question).await,
            Step::Usual { times, question } => self.note_usual(*times, question).await,
            Step::Counts { question, after } => self.note_counting(question, *after).await,
            Step::Wait(span) => {
                sleep(*span).await;
                self.before = self.upstreams[0].0.asked();
            }
            Step::Mode(number, mode) => *self.upstreams[number - 1].1.lock().unwrap() = mode.clone(),
            Step::Write(file, text) => self.server.write(file, &filled(text, &self.places)),
            Step::Until(question, wanted) => self.until(question, wanted).await,
            Step::Anew => self.note_heard().await,
            Step::Checks(number) => self.note_checks(*number).await,
            Step::Log(part) => self.note_log(part).await,
            Step::Get(port, path) => self.note_page(*port, path).await,
            Step::Metrics(families) => self.note_metrics(families, transcript::of_metrics).await,
            Step::Bounds(families) => self.note_metrics(families, transcript::of_bounds).await,
            Step::Ends => {
                self.server.signal(Signal::SIGTERM);
                self.note_end().await;
            }
            Step::Mute(span) => {
                let mut stream = TcpStream::connect(self.server.dns()).await.unwrap();
                let ended = timeout(*span, read_framed(&mut stream)).await.is_ok();
                self.seen.push(format!("ended within {span:?}: {ended}"));
            }
            Step::Remembers { names, under } => self.note_memory(*names, under).await,
            Step::Questions(count) => self.note_questions(*count).await,
            Step::Spread => {
                self.forgets = true;
                let asked = self
                    .upstreams
                    .iter()
                    .filter(|(upstream, _)| upstream.asked() > 0)
                    .count();
                self.seen.push(format!("upstreams that were asked: {asked}"));
            }
            Step::Idle(span) => self.note_idle(*span).await,
            Step::Connections => {
                let accepted: Vec<usize> = self
                    .upstreams
                    .iter()
                    .map(|(upstream, _)| upstream.accepted())
                    .collect();
                self.seen.push(format!("connections: {accepted:?}"));
            }
            Step::Open => self.note_open().await,
        }
    }

    async fn ask(&self, question: &str) -> String {
        match self.exchange(question).await {
            Some(message) if self.row.edns => {
                transcript::of_message(&message) + &transcript::of_edns(&message)
            }
            Some(message) => transcript::of_message(&message),
            None => "nothing".to_owned(),
        }
    }

    /// `NAME TYPE [tcp] [do] [plain] [size=N] [chaos]`
    async fn exchange(&self, question: &str) -> Option<Message> {
        let (octets, words) = (compose(question), question.split(' ').collect::<Vec<_>>());
        if words.contains(&"tcp") {
            let mut stream = timeout(PATIENCE, TcpStream::connect(self.server.dns()))
                .await
                .ok()?
                .ok()?;
            stream.write_all(&framed(&octets)).await.ok()?;
            let answer = timeout(PATIENCE, read_framed(&mut stream)).await.ok()??;
            return Message::from_vec(&answer).ok();
        }
        let at: SocketAddr = match words.contains(&"at=THERE") {
            true => format!("{}:{PORT}", filled("THERE", &self.places))
                .parse()
                .unwrap(),
            false => self.server.dns(),
        };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
        socket.connect(at).await.ok()?;
        socket.send(&octets).await.ok()?;
        let mut buffer = vec![0; 65_535];
        let length = timeout(PATIENCE, socket.recv(&mut buffer)).await.ok()?.ok()?;
        Message::from_vec(&buffer[..length]).ok()
    }

    async fn note_again(&mut self, question: &str) {
        const TIMES: usize = 8;
        let before = self.upstreams[0].0.asked();
        let seen = self.ask(question).await;
        for _ in 1..TIMES {
            self.ask(question).await;
        }
        // A slow answer may have been asked for twice.
        let each = self.upstreams[0].0.asked() - before >= TIMES;
        self.seen
            .push(format!("{question} -> {seen}; asked each time: {each}"));
    }

    /// Which answer stands first most often.
    async fn note_usual(&mut self, times: usize, question: &str) {
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..times {
            let message = self.exchange(question).await;
            let data =
                message.and_then(|message| message.answers.first().map(|record| record.data.to_string()));
            *first.entry(data.unwrap_or_default()).or_default() += 1;
        }
        let usual = first
            .iter()
            .max_by_key(|(_, times)| **times)
            .map(|(data, _)| data);
        self.seen.push(format!("{question} -> first is mostly {usual:?}"));
    }

    /// Which answers stand first, over all times.
    async fn note_first(&mut self, times: usize, question: &str) {
        let mut first: Vec<String> = Vec::new();
        for _ in 0..times {
            let message = self.exchange(question).await;
            let data =
                message.and_then(|message| message.answers.first().map(|record| record.data.to_string()));
            first.push(data.unwrap_or_default());
        }
        first.sort();
        first.dedup();
        self.seen.push(format!("{question} -> first is one of {first:?}"));
    }

    /// Whether a TTL is less after a while.
    async fn note_counting(&mut self, question: &str, after: Duration) {
        let ttl = |message: Option<Message>| {
            message.and_then(|message| message.answers.first().map(|record| record.ttl))
        };
        let before = ttl(self.exchange(question).await);
        sleep(after).await;
        let later = ttl(self.exchange(question).await);
        self.seen
            .push(format!("{question} -> counts down: {}", later < before));
    }

    async fn until(&mut self, question: &str, wanted: &str) {
        let start = Instant::now();
        let mut found = false;
        while !found && start.elapsed() < ABSENCE {
            found = self.ask(question).await.contains(wanted);
            sleep(Duration::from_millis(50)).await;
        }
        self.seen.push(format!("{question} -> has {wanted}: {found}"));
    }

    async fn note_heard(&mut self) {
        let start = Instant::now();
        let mut was_asked = false;
        while !was_asked && start.elapsed() < ABSENCE {
            was_asked = self.upstreams[0].0.asked() > self.before;
            sleep(Duration::from_millis(10)).await;
        }
        self.seen.push(format!("UP1 is asked anew: {was_asked}"));
    }

    async fn note_checks(&mut self, number: usize) {
        let start = Instant::now();
        while self.upstreams[number - 1].0.checks().is_empty() && start.elapsed() < ABSENCE {
            sleep(Duration::from_millis(10)).await;
        }
        let checks = self.upstreams[number - 1].0.checks();
        let told = checks.first().map(|asked| {
            format!(
                "{} rd={} {:?}",
                asked.name(),
                asked.message().metadata.recursion_desired,
                asked.over
            )
        });
        self.seen.push(format!("checks of UP{number}: {told:?}"));
    }

    /// The lines with this, once there is one.
    async fn note_log(&mut self, part: &str) {
        let start = Instant::now();
        let (mut lines, mut since) = (Vec::new(), start);
        while start.elapsed() <= ABSENCE && (lines.is_empty() || since.elapsed() < SETTLED) {
            let now = self.lines_with(part);
            if now != lines {
                (lines, since) = (now, Instant::now());
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.seen.push(format!("log has {part:?}: {lines:#?}"));
    }

    fn lines_with(&self, part: &str) -> Vec<String> {
        let log = self.server.log();
        let lines = log
            .lines()
            .filter(|line| line.starts_with('[') && line.contains(part));
        lines.map(transcript::of_line).collect()
    }

    /// CoreDNS counts a query after its reply has gone: the page is read until it stays as it is.
    async fn note_metrics(&mut self, families: &[&str], told: fn(&str, &str) -> String) {
        let start = Instant::now();
        let mut last = Vec::new();
        loop {
            let page = self.server.get(9_199, "/metrics").unwrap_or_default();
            let now: Vec<String> = families.iter().map(|family| told(&page, family)).collect();
            if now == last || start.elapsed() > ABSENCE {
                return self.seen.extend(now);
            }
            last = now;
            sleep(SETTLED).await;
        }
    }

    async fn note_page(&mut self, port: u16, path: &str) {
        let start = Instant::now();
        let mut got = None;
        while got.is_none() && start.elapsed() < ABSENCE {
            got = self.server.get(port, path);
            sleep(Duration::from_millis(20)).await;
        }
        self.seen.push(format!("GET :{port}{path} -> {got:?}"));
    }

    async fn note_end(&mut self) {
        let start = Instant::now();
        let mut has_ended = false;
        while !has_ended && start.elapsed() < ABSENCE {
            has_ended = self.server.has_ended();
            sleep(Duration::from_millis(10)).await;
        }
        self.seen.push(format!("ends: {has_ended}"));
    }

    /// Asks for names, and once more: what is asked of upstreams again was forgotten.
    async fn note_memory(&mut self, names: usize, under: &str) {
        let mut asked = [0; 2];
        for asked in &mut asked {
            for from in (0..names).step_by(50) {
                let questions: Vec<String> = (from..from + 50)
                    .map(|number| format!("{under}.n{number}.test A"))
                    .collect();
                let answers = questions.iter().map(|question| self.exchange(question));
                crate::world::join_all(answers.collect()).await;
            }
            *asked = self.upstreams[0].0.asked();
        }
        // A few may have been asked twice, or late.
        let forgot = asked[1] - asked[0] > names / 15;
        self.forgets = true;
        self.seen.push(format!("forgot many of {names}: {forgot}"));
    }

    async fn note_questions(&mut self, count: usize) {
        let mut stream = TcpStream::connect(self.server.dns()).await.unwrap();
        let mut answered = 0;
        for _ in 0..count {
            // Where the other side has ended it, nothing comes.
            drop(stream.write_all(&framed(&compose("a60.test A"))).await);
            answered += usize::from(matches!(
                timeout(PATIENCE, read_framed(&mut stream)).await,
                Ok(Some(_))
            ));
        }
        self.seen
            .push(format!("answered on a connection: {answered} of {count}"));
    }

    /// Whether a connection that says nothing is ended within this time.
    async fn note_idle(&mut self, span: Duration) {
        let mut stream = TcpStream::connect(self.server.dns()).await.unwrap();
        stream.write_all(&framed(&compose("idle.test A"))).await.unwrap();
        let answer = timeout(PATIENCE, read_framed(&mut stream)).await.unwrap();
        let ended = timeout(span, read_framed(&mut stream)).await;
        let (answered, ended) = (answer.is_some(), matches!(ended, Ok(None)));
        self.seen
            .push(format!("answered: {answered}, ended within {span:?}: {ended}"));
    }

    async fn note_open(&mut self) {
        let start = Instant::now();
        while self.upstreams[0].0.open() > 0 && start.elapsed() < EXPIRY {
            sleep(Duration::from_millis(20)).await;
        }
        self.seen.push(format!(
            "connections stay open: {}",
            self.upstreams[0].0.open() > 0
        ));
    }

    /// Which questions, and how.
    fn write_what_upstreams_heard(&mut self) {
        if self.forgets {
            return;
        }
        for (number, (upstream, _)) in self.upstreams.iter().enumerate() {
            let mut heard: Vec<String> = upstream
                .received()
                .iter()
                .map(|asked| told(asked, self.row))
                .collect();
            heard.sort();
            // A slow answer may have been asked for twice.
            heard.dedup();
            self.seen.push(format!("UP{} heard {heard:?}", number + 1));
        }
    }
}

fn told(asked: &ReceivedQuery, row: &Row) -> String {
    let message = asked.message();
    let query = &message.queries[0];
    let said = if row.edns {
        transcript::of_edns(&message)
    } else {
        String::new()
    };
    let over = match asked.over {
        // CoreDNS refreshes its cache over TCP, dnsd as it asks otherwise.
        _either if row.option.starts_with("cache ") => "",
        Transport::Udp => "udp",
        Transport::Tcp | Transport::Quic => "tcp",
    };
    let from = asked.from.ip();
    format!(
        "{over} from {from} {} {} {}{said}",
        asked.name(),
        query.query_class,
        query.query_type
    )
}

fn compose(question: &str) -> Vec<u8> {
    let words: Vec<&str> = question.split(' ').collect();
    let mut message = Message::query();
    message.metadata.recursion_desired = !words.contains(&"norec");
    let mut query = Query::query(name(words[0]), words[1].parse::<RecordType>().unwrap());
    if words.contains(&"chaos") {
        query.set_query_class(DNSClass::CH);
    }
    message.add_query(query);
    if !words.contains(&"plain") {
        let size = words.iter().find_map(|word| word.strip_prefix("size="));
        let mut edns = Edns::new();
        edns.set_max_payload(size.map_or(1_232, |size| size.parse().unwrap()));
        edns.set_dnssec_ok(words.contains(&"do"));
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

/// What a name says is answered: `a60` is an address with a TTL of 60, `nx` does not exist, `nodata` has no records, `many` has
/// many, `alias` leads to `a60`, `bad` fails, `large` is 40 addresses.
fn deeds(asked: &ReceivedQuery, place: IpAddr, number: usize, mode: &Mode) -> Vec<Action> {
    match mode {
        Mode::Honest => vec![Action::Reply(honest(asked, place, &format!("192.0.2.{number}")))],
        Mode::Changed => vec![Action::Reply(honest(
            asked,
            place,
            &format!("192.0.2.{}", number + 100),
        ))],
        Mode::Silent => Vec::new(),
        Mode::Slow(_) if asked.is_check() => vec![Action::Reply(honest(asked, place, "192.0.2.1"))],
        Mode::Slow(span) => vec![
            Action::Wait(*span),
            Action::Reply(honest(asked, place, &format!("192.0.2.{number}"))),
        ],
        Mode::Denied if !asked.is_check() => vec![Action::Reply(denial(asked, ResponseCode::NXDomain))],
        Mode::Empty if !asked.is_check() => vec![Action::Reply(denial(asked, ResponseCode::NoError))],
        Mode::Denied | Mode::Empty => vec![Action::Reply(asked.answer(Vec::new()))],
        Mode::Code(code) => vec![Action::Reply(asked.code(ResponseCode::from(0, *code)))],
    }
}

fn denial(asked: &ReceivedQuery, code: ResponseCode) -> Vec<u8> {
    let mut message = with_code(response(&asked.octets, Vec::new()), code);
    message.add_authority(authority(60, 60));
    message.to_vec().unwrap()
}

fn honest(asked: &ReceivedQuery, place: IpAddr, own: &str) -> Vec<u8> {
    let question = asked.name();
    let kind = asked.message().queries[0].query_type();
    let first = question.split('.').next().unwrap_or_default();
    if first == "self" && kind == RecordType::A {
        return asked.answer(vec![address(&question, 60, &place.to_string())]);
    }
    if let (Some(ttl), RecordType::A) = (first.strip_prefix('a').and_then(|ttl| ttl.parse().ok()), kind) {
        return asked.answer(vec![address(&question, ttl, own)]);
    }
    match (first, kind) {
        ("nx", _) => denial(asked, ResponseCode::NXDomain),
        ("bad", _) => asked.code(ResponseCode::ServFail),
        ("refused", _) => asked.code(ResponseCode::Refused),
        ("many", RecordType::A) => {
            let addresses = (1..=4).map(|last| address(&question, 60, &format!("198.51.{last}.1")));
            asked.answer(addresses.collect())
        }
        ("large", RecordType::A) => {
            let addresses = (1..=60).map(|last| address(&question, 60, &format!("198.51.100.{last}")));
            asked.answer(addresses.collect())
        }
        ("alias", RecordType::A) => asked.answer(vec![
            alias(&question, 60, "a60.target.test"),
            address("a60.target.test", 60, own),
        ]),
        ("both", RecordType::AAAA) => asked.answer(vec![address(&question, 60, "2001:db8::1")]),
        ("both" | "four", RecordType::A) => asked.answer(vec![address(&question, 60, own)]),
        _nothing if kind == RecordType::NS => asked.answer(Vec::new()),
        _nothing => denial(asked, ResponseCode::NoError),
    }
}
