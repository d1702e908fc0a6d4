//! The authority of requests on a Unix socket. grpc-go sends the path of the socket as `:authority`, with its slashes percent-encoded
//! (`%2Frun%2F….sock`); h2 refuses that as no authority and resets the stream. What a client sends is passed on octet for octet, but in blocks of
//! header fields (RFC 9113, section 6.2) a literal value of `:authority` becomes `u`.
//!
//! The compression of header fields (RFC 7541) needs no state for it: an entry of the dynamic table keeps its position, and becomes smaller at
//! most. So the reader's table holds at least what the writer's holds, at the same indices.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// RFC 9113, section 3.4.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// What h2 announces (`SETTINGS_MAX_FRAME_SIZE`), unless told otherwise.
const MAX_FRAME: usize = 16_384;
const MAX_BLOCK: usize = 64 << 10;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// What a name of the static table is (RFC 7541, appendix A), and the name itself.
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY: &[u8] = b":authority";

/// What is not HTTP/2, or more than is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    #[error("a frame of header fields is larger than {MAX_FRAME} octets")]
    Frame,
    #[error("header fields are larger than {MAX_BLOCK} octets")]
    Block,
    #[error("a frame of header fields is cut or interrupted")]
    Malformed,
    #[error("header fields are no HPACK")]
    Hpack,
}

/// Takes what a client sends, in pieces, and gives it with another authority.
#[derive(Debug)]
pub struct AuthorityRewriter {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Octets to pass on unchanged.
    Pass(usize),
    /// A frame's head, as far as it came.
    Head(Vec<u8>),
    /// A block of header fields of a stream. `payload` is the frame that is being read.
    Block(Block),
}

#[derive(Debug)]
struct Block {
    stream: [u8; 4],
    is_end_of_stream: bool,
    fragments: Vec<u8>,
    frame: Option<Frame>,
    head: Vec<u8>,
}

#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    length: usize,
    payload: Vec<u8>,
}

impl Default for AuthorityRewriter {
    fn default() -> Self {
        Self {
            state: State::Pass(PREFACE),
        }
    }
}

impl AuthorityRewriter {
    /// Takes a piece and appends to `output`.
    ///
    /// # Errors
    /// When the connection is to be closed.
    pub fn push(&mut self, mut input: &[u8], output: &mut Vec<u8>) -> Result<(), AuthorityError> {
        while !input.is_empty() {
            match &mut self.state {
                State::Pass(left) => {
                    let piece = take(&mut input, *left);
                    output.extend_from_slice(piece);
                    *left -= piece.len();
                    if *left == 0 {
                        self.state = State::Head(Vec::new());
                    }
                }
                State::Head(head) => {
                    head.extend_from_slice(take(&mut input, FRAME_HEAD - head.len()));
                    if let Ok(head) = <[u8; FRAME_HEAD]>::try_from(head.as_slice()) {
                        self.state = begin(head, output)?;
                    }
                }
                State::Block(block) => {
                    if block.take(&mut input)? {
                        block.write(output)?;
                        self.state = State::Head(Vec::new());
                    }
                }
            }
        }
        Ok(())
    }
}

impl AuthorityRewriter {
    /// Whether the next octets pass unchanged, unless a block begins in them.
    fn is_passing(&self) -> bool {
        match &self.state {
            State::Pass(_) => true,
            State::Head(head) => head.is_empty(),
            State::Block(_) => false,
        }
    }

    /// Takes as many of the first octets as pass unchanged: those before a block, and before a head that is cut.
    fn pass(&mut self, input: &[u8]) -> Result<usize, AuthorityError> {
        let mut rest = input;
        while self.is_passing() && !rest.is_empty() {
            match &mut self.state {
                State::Pass(left) => {
                    *left -= take(&mut rest, *left).len();
                    if *left == 0 {
                        self.state = State::Head(Vec::new());
                    }
                }
                State::Head(_) | State::Block(_) => {
                    let Some(head) = rest.first_chunk::<FRAME_HEAD>().filter(|head| head[3] != HEADERS)
                    else {
                        break;
                    };
                    self.state = begin(*head, &mut Vec::new())?;
                    take(&mut rest, FRAME_HEAD);
                }
            }
        }
        Ok(input.len() - rest.len())
    }
}

fn begin(head: [u8; FRAME_HEAD], output: &mut Vec<u8>) -> Result<State, AuthorityError> {
    let frame = Frame::of(head);
    if frame.kind != HEADERS {
        output.extend_from_slice(&head);
        return Ok(match frame.length {
            0 => State::Head(Vec::new()),
            length => State::Pass(length),
        });
    }
    let [_, _, _, _, flags, stream @ ..] = head;
    if frame.length > MAX_FRAME {
        return Err(AuthorityError::Frame);
    }
    // No block is without octets: h2 would say so, and here it would never end.
    if frame.length == 0 {
        return Err(AuthorityError::Malformed);
    }
    Ok(State::Block(Block {
        stream,
        is_end_of_stream: flags & END_STREAM != 0,
        fragments: Vec::new(),
        frame: Some(frame),
        head: Vec::new(),
    }))
}

impl Frame {
    fn of(head: [u8; FRAME_HEAD]) -> Self {
        let [high, middle, low, kind, flags, ..] = head;
        let length = (usize::from(high) << 16) | (usize::from(middle) << 8) | usize::from(low);
        Self {
            kind,
            flags,
            length,
            payload: Vec::new(),
        }
    }

    /// The fragment of the block, without padding and priority.
    fn fragment(&self) -> Option<&[u8]> {
        let mut rest = self.payload.as_slice();
        if self.kind == HEADERS && self.flags & PADDED != 0 {
            let (length, behind) = rest.split_first()?;
            rest = behind.get(..behind.len().checked_sub(usize::from(*length))?)?;
        }
        if self.kind == HEADERS && self.flags & PRIORITY != 0 {
            rest = rest.get(5..)?;
        }
        Some(rest)
    }
}

impl Block {
    /// `true` at the end of the block.
    fn take(&mut self, input: &mut &[u8]) -> Result<bool, AuthorityError> {
        let Some(frame) = &mut self.frame else {
            self.head
                .extend_from_slice(take(input, FRAME_HEAD - self.head.len()));
            if let Ok(head) = <[u8; FRAME_HEAD]>::try_from(self.head.as_slice()) {
                self.head.clear();
                return self.go_on(head);
            }
            return Ok(false);
        };
        frame
            .payload
            .extend_from_slice(take(input, frame.length - frame.payload.len()));
        if frame.payload.len() < frame.length {
            return Ok(false);
        }
        self.end_frame()
    }

    fn go_on(&mut self, head: [u8; FRAME_HEAD]) -> Result<bool, AuthorityError> {
        let frame = Frame::of(head);
        if frame.kind != CONTINUATION || head[5..] != self.stream {
            return Err(AuthorityError::Malformed);
        }
        if frame.length > MAX_FRAME {
            return Err(AuthorityError::Frame);
        }
        let is_empty = frame.length == 0;
        self.frame = Some(frame);
        if is_empty { self.end_frame() } else { Ok(false) }
    }

    fn end_frame(&mut self) -> Result<bool, AuthorityError> {
        let frame = self.frame.take().ok_or(AuthorityError::Malformed)?;
        let fragment = frame.fragment().ok_or(AuthorityError::Malformed)?;
        self.fragments.extend_from_slice(fragment);
        if self.fragments.len() > MAX_BLOCK {
            return Err(AuthorityError::Block);
        }
        Ok(frame.flags & END_HEADERS != 0)
    }

    fn write(&self, output: &mut Vec<u8>) -> Result<(), AuthorityError> {
        let block = rewrite(&self.fragments).ok_or(AuthorityError::Hpack)?;
        let mut pieces = block.chunks(MAX_FRAME).peekable();
        let mut kind = HEADERS;
        let mut flags = if self.is_end_of_stream { END_STREAM } else { 0 };
        loop {
            let piece = pieces.next().unwrap_or_default();
            if pieces.peek().is_none() {
                flags |= END_HEADERS;
            }
            let length = u32::try_from(piece.len()).map_err(|_large| AuthorityError::Block)?;
            output.extend_from_slice(&length.to_be_bytes()[1..]);
            output.extend_from_slice(&[kind, flags]);
            output.extend_from_slice(&self.stream);
            output.extend_from_slice(piece);
            if pieces.peek().is_none() {
                return Ok(());
            }
            (kind, flags) = (CONTINUATION, 0);
        }
    }
}

fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (piece, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    piece
}

/// A block with another authority; none where it is not made of representations (RFC 7541, section 6).
fn rewrite(block: &[u8]) -> Option<Vec<u8>> {
    let mut output = Vec::with_capacity(block.len());
    let mut rest = block;
    while let Some(first) = rest.first() {
        let begin = rest;
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let index = integer(&mut rest, prefix)?;
        let mut is_authority = false;
        let is_literal = prefix == 6 || prefix == 4;
        if is_literal {
            is_authority = match index {
                0 => string(&mut rest)? == AUTHORITY,
                index => index == AUTHORITY_INDEX,
            };
        }
        let before_value = begin.len() - rest.len();
        let is_rewritten = is_literal && !string(&mut rest)?.is_empty() && is_authority;
        if is_rewritten {
            output.extend_from_slice(&begin[..before_value]);
            output.extend_from_slice(&[1, b'u']);
        } else {
            output.extend_from_slice(&begin[..begin.len() - rest.len()]);
        }
    }
    Some(output)
}

/// RFC 7541, section 5.1.
fn integer(rest: &mut &[u8], prefix: u32) -> Option<usize> {
    let (first, behind) = rest.split_first()?;
    *rest = behind;
    let most = (1usize << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value < most {
        return Some(value);
    }
    for shift in [0u32, 7, 14, 21] {
        let (next, behind) = rest.split_first()?;
        *rest = behind;
        value += usize::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// RFC 7541, section 5.2; as it is encoded.
fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = integer(rest, 7)?;
    let (string, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(string)
}

/// A connection of which the rewritten octets are read.
#[derive(Debug)]
pub struct Rewritten<S> {
    stream: S,
    rewriter: AuthorityRewriter,
    output: Vec<u8>,
    given: usize,
}

impl<S> Rewritten<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            rewriter: AuthorityRewriter::default(),
            output: Vec::new(),
            given: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewritten<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        while this.given == this.output.len() {
            let mut output = Vec::new();
            if this.rewriter.is_passing() {
                // Data, which is most of it, is where it belongs already.
                let before = buffer.filled().len();
                ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
                let read = &buffer.filled()[before..];
                let passes = this.rewriter.pass(read).map_err(invalid)?;
                this.rewriter
                    .push(&read[passes..], &mut output)
                    .map_err(invalid)?;
                let is_whole = passes > 0 || read.is_empty();
                buffer.set_filled(before + passes);
                (this.given, this.output) = (0, output);
                if is_whole {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            let mut input = [0; 1 << 10];
            let mut input = ReadBuf::new(&mut input);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut input))?;
            if input.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.push(input.filled(), &mut output).map_err(invalid)?;
            (this.given, this.output) = (0, output);
        }
        let mut rest = &this.output[this.given..];
        let piece = take(&mut rest, buffer.remaining());
        buffer.put_slice(piece);
        this.given += piece.len();
        if this.given == this.output.len() {
            // An idle connection keeps no buffer.
            (this.given, this.output) = (0, Vec::new());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewritten<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, octets)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, octets)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
