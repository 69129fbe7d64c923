//! Frames of HTTP/2 that break a rule of RFC 9113, made by hand: what their sender gets, and that others are
//! served.
//!
//! The frames are read by the crate h2, which may end a connection where the RFC asks for the end of a
//! stream (5.4.1 allows it). Where it differs from the RFC: it says `PROTOCOL_ERROR` for
//! `FRAME_SIZE_ERROR` of short frames, for `COMPRESSION_ERROR`, for a too large window in SETTINGS and for
//! `STREAM_CLOSED` of frames after the end of a stream; it takes a connection whose first frame is not
//! SETTINGS; and it drops pseudo-header fields of trailers. None of this lets anything through.

use kat_types::ingress::RouteForwardAuth;
use tokio::{net::TcpSocket, sync::Notify};

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// A type that nobody knows.
const UNKNOWN: u8 = 99;

/// Flags.
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const WITH_PRIORITY: u8 = 0x20;
/// A head without a body.
const WHOLE: u8 = END_STREAM | END_HEADERS;

/// Error codes (RFC 9113, section 7).
const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Largest number of a stream, and largest window.
const LARGEST: u32 = (1 << 31) - 1;
/// Largest frame without another setting.
const LARGEST_FRAME: usize = 16_384;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn window_update(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

fn setting(name: u16, value: u32) -> Vec<u8> {
    let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat();
    frame(SETTINGS, 0, 0, &payload)
}

/// A text of a head: its length in a prefix of 7 bits, and its bytes (RFC 7541, section 5).
fn literal(text: &str) -> Vec<u8> {
    let mut written = Vec::new();
    match text.len().checked_sub(127) {
        None => written.push(u8::try_from(text.len()).unwrap()),
        Some(mut rest) => {
            written.push(127);
            while rest >= 128 {
                written.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            written.push(u8::try_from(rest).unwrap());
        }
    }
    written.extend(text.as_bytes());
    written
}

/// Fields of a head, none of which a table gets (RFC 7541, section 6.2.2).
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let written = fields
        .iter()
        .map(|(name, value)| [vec![0], literal(name), literal(value)].concat());
    written.collect::<Vec<_>>().concat()
}

/// The pseudo-header fields of a request, in this order.
const PSEUDO: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "shop.example"),
    (":path", "/"),
];

/// The head of a GET with further fields.
fn get_with(more: &[(&str, &str)]) -> Vec<u8> {
    fields(&[&PSEUDO[..], more].concat())
}

/// The head of a request, changed in one place.
fn get_but(place: usize, field: (&str, &str)) -> Vec<u8> {
    let mut changed = PSEUDO;
    changed[place] = field;
    fields(&changed)
}

/// The head of a POST with further fields.
fn post_with(more: &[(&str, &str)]) -> Vec<u8> {
    [get_but(0, (":method", "POST")), fields(more)].concat()
}

/// A whole request on the first stream.
fn whole(head: &[u8]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, head)
}

/// A request on the first stream whose body follows.
fn open() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, &post_with(&[]))
}

/// A connection's begin with these frames after it.
fn begun(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frames.concat()].concat()
}

struct ReceivedFrame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// The four bytes at a place of a payload.
fn number(payload: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(payload[at..at + 4].try_into().unwrap())
}

/// The status of an answer's head, whose first field it is: an entry of the table, or a literal in the
/// code of Huffman (RFC 7541, appendices A and B).
fn status_in(head: &[u8]) -> u16 {
    match head {
        [0x88, ..] => 200,
        [0x8c, ..] => 400,
        [0x48, 0x83, 0x68, 0x0d, 0xff, ..] => 405,
        [0x48, 0x83, 0x69, 0x90, 0xff, ..] => 431,
        other => panic!("another status: {other:02x?}"),
    }
}

/// What a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reaction {
    /// GOAWAY with this code, and the connection's end.
    GoAway(u32),
    /// The connection's end without a code.
    End,
    /// The end of this stream with this code.
    Reset(u32, u32),
    /// An answer on this stream with this status.
    Answer(u32, u16),
}

/// What is sent, in words and in bytes, and what its sender gets.
type Case = (&'static str, Vec<u8>, Reaction);

struct RawClient(TlsStream<TcpStream>);

impl RawClient {
    async fn connect(proxy: &Proxy, root: &str) -> Self {
        Self(proxy.tls("shop.example", &[root], &["h2"]).await.unwrap())
    }

    async fn send(&mut self, bytes: &[u8]) {
        // One that ends meanwhile does not take all of it.
        let _ = soon(self.0.write_all(bytes)).await;
        let _ = soon(self.0.flush()).await;
    }

    /// The next frame; `None` at the end of the connection.
    async fn frame(&mut self) -> Option<ReceivedFrame> {
        let mut head = [0; 9];
        soon(self.0.read_exact(&mut head)).await.ok()?;
        let [a, b, c, kind, _flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        soon(self.0.read_exact(&mut payload)).await.ok()?;
        Some(ReceivedFrame {
            kind,
            stream: u32::from_be_bytes(stream),
            payload,
        })
    }

    /// The next frame of this type.
    async fn next(&mut self, kind: u8) -> ReceivedFrame {
        loop {
            let frame = self.frame().await.expect("a frame before the end");
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// What first happens to a stream.
    async fn of_stream(&mut self) -> Reaction {
        while let Some(frame) = self.frame().await {
            match frame.kind {
                RST_STREAM => return Reaction::Reset(frame.stream, number(&frame.payload, 0)),
                HEADERS => return Reaction::Answer(frame.stream, status_in(&frame.payload)),
                GOAWAY => return Reaction::GoAway(number(&frame.payload, 4)),
                _ => {}
            }
        }
        Reaction::End
    }

    /// How the connection ends, whatever happens to its streams before.
    async fn of_connection(&mut self) -> Reaction {
        let mut reaction = Reaction::End;
        while let Some(frame) = self.frame().await {
            if frame.kind == GOAWAY {
                reaction = Reaction::GoAway(number(&frame.payload, 4));
            }
        }
        reaction
    }
}

/// A server that answers with the length of the request's body.
async fn measures() -> SocketAddr {
    server(
        async |request: Request<Incoming>| match request.into_body().collect().await {
            Ok(whole) => Response::new(body(whole.to_bytes().len().to_string())),
            Err(_) => Response::new(body("broken")),
        },
    )
    .await
}

/// A shop with TLS, and its root.
fn shop(server: SocketAddr) -> (Files, String) {
    let mut files = Files::shop(&[server]);
    let root = files.certificate(&["shop.example"]);
    files.route("shop", with_tls(service("shop.example")));
    (files, root)
}

fn request() -> Request<Body> {
    let request = Request::builder().uri("https://shop.example/");
    request.body(body("")).unwrap()
}

/// Each case has a connection of its own. After it, one that was there before is served.
async fn check_reactions(cases: Vec<Case>) {
    let (files, root) = shop(measures().await);
    let proxy = Proxy::start(&files).await;
    let mut other = proxy.http2::<Body>("shop.example", &root).await;
    for (what, bytes, expected) in cases {
        let mut client = RawClient::connect(&proxy, &root).await;
        client.send(&bytes).await;
        let found = match expected {
            Reaction::GoAway(_) | Reaction::End => client.of_connection().await,
            Reaction::Reset(..) | Reaction::Answer(..) => client.of_stream().await,
        };
        assert_eq!(found, expected, "{what}");
        let answer = soon(other.send_request(request())).await.unwrap();
        assert_eq!(text(answer).await, "0", "another connection after: {what}");
    }
    drop(other);
    proxy.end().await;
}

const BREAKS: Reaction = Reaction::GoAway(PROTOCOL_ERROR);
const SERVED: Reaction = Reaction::Answer(1, 200);
const MALFORMED: Reaction = Reaction::Reset(1, PROTOCOL_ERROR);
const FLOODS: Reaction = Reaction::GoAway(ENHANCE_YOUR_CALM);

#[tokio::test]
async fn a_connection_that_does_not_begin_as_http2_ends() {
    let settings = frame(SETTINGS, 0, 0, &[]);
    let wrong = [&b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..], &settings].concat();
    let http1 = b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n".to_vec();
    check_reactions(vec![
        ("a good begin", begun(&[whole(&get_with(&[]))]), SERVED),
        ("another preface", wrong, Reaction::End),
        ("a request of HTTP/1.1", http1, Reaction::End),
    ])
    .await;
}

#[tokio::test]
async fn a_frame_of_a_wrong_length_ends_the_connection() {
    let too_long = Reaction::GoAway(FRAME_SIZE_ERROR);
    let long = vec![0; LARGEST_FRAME + 1];
    let short =
        |kind: u8, stream: u32, length: usize| begun(&[frame(kind, 0, stream, &long[..length])]);
    check_reactions(vec![
        (
            "HEADERS above the limit",
            begun(&[whole(&[&get_with(&[])[..], &long].concat())]),
            too_long,
        ),
        (
            "DATA above the limit",
            begun(&[open(), frame(DATA, 0, 1, &long)]),
            too_long,
        ),
        (
            "an unknown frame above the limit",
            begun(&[frame(UNKNOWN, 0, 0, &long)]),
            too_long,
        ),
        ("SETTINGS of 5 bytes", short(SETTINGS, 0, 5), BREAKS),
        ("PING of 7 bytes", short(PING, 0, 7), BREAKS),
        ("GOAWAY of 7 bytes", short(GOAWAY, 0, 7), BREAKS),
        (
            "WINDOW_UPDATE of 3 bytes",
            short(WINDOW_UPDATE, 0, 3),
            BREAKS,
        ),
        ("PRIORITY of 4 bytes", short(PRIORITY, 1, 4), BREAKS),
        (
            "RST_STREAM of 1 byte",
            begun(&[open(), frame(RST_STREAM, 0, 1, &[0])]),
            BREAKS,
        ),
        (
            "more padding than payload",
            begun(&[open(), frame(DATA, PADDED | END_STREAM, 1, b"\x05abcd")]),
            BREAKS,
        ),
        (
            "more padding than a head has",
            begun(&[frame(
                HEADERS,
                WHOLE | PADDED,
                1,
                &[&[255][..], &get_with(&[])[..]].concat(),
            )]),
            BREAKS,
        ),
        (
            "padding that fits",
            begun(&[frame(
                HEADERS,
                WHOLE | PADDED,
                1,
                &[&[3][..], &get_with(&[]), &[0; 3]].concat(),
            )]),
            SERVED,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_frame_on_a_wrong_stream_ends_the_connection() {
    let head = get_with(&[]);
    let on = |stream: u32| frame(HEADERS, WHOLE, stream, &head);
    let promised = [&2_u32.to_be_bytes()[..], &head].concat();
    check_reactions(vec![
        ("an even number", begun(&[on(2)]), BREAKS),
        ("a lower number", begun(&[on(5), on(3)]), BREAKS),
        ("the same number", begun(&[on(1), on(1)]), BREAKS),
        ("HEADERS without a stream", begun(&[on(0)]), BREAKS),
        (
            "DATA without a stream",
            begun(&[frame(DATA, 0, 0, b"x")]),
            BREAKS,
        ),
        ("RST_STREAM without a stream", begun(&[reset(0)]), BREAKS),
        (
            "PRIORITY without a stream",
            begun(&[frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 1])]),
            BREAKS,
        ),
        (
            "SETTINGS of a stream",
            begun(&[frame(SETTINGS, 0, 1, &[])]),
            BREAKS,
        ),
        (
            "PING of a stream",
            begun(&[frame(PING, 0, 1, &[0; 8])]),
            BREAKS,
        ),
        (
            "GOAWAY of a stream",
            begun(&[frame(GOAWAY, 0, 1, &[0; 8])]),
            BREAKS,
        ),
        (
            "DATA on an idle stream",
            begun(&[frame(DATA, 0, 1, b"x")]),
            BREAKS,
        ),
        ("RST_STREAM on an idle stream", begun(&[reset(1)]), BREAKS),
        (
            "WINDOW_UPDATE on an idle stream",
            begun(&[window_update(1, 1)]),
            BREAKS,
        ),
        (
            "DATA after the end of the stream",
            begun(&[on(1), frame(DATA, END_STREAM, 1, b"x")]),
            BREAKS,
        ),
        (
            "PUSH_PROMISE of a client",
            begun(&[open(), frame(PUSH_PROMISE, END_HEADERS, 1, &promised)]),
            BREAKS,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_head_in_several_frames_is_followed_by_nothing_else_and_bounded() {
    let head = get_with(&[]);
    let first = frame(HEADERS, END_STREAM, 1, &head);
    let empty = frame(CONTINUATION, 0, 1, &[]);
    let value = "b".repeat(1000);
    let large: Vec<Vec<u8>> = (0..100)
        .map(|number| {
            let name = format!("x-{number}");
            frame(
                CONTINUATION,
                0,
                1,
                &fields(&[(name.as_str(), value.as_str())]),
            )
        })
        .collect();
    let pieces = [
        frame(HEADERS, END_STREAM, 1, &head[..10]),
        frame(CONTINUATION, 0, 1, &head[10..20]),
        frame(CONTINUATION, END_HEADERS, 1, &head[20..]),
    ];
    let with = |second: Vec<u8>| begun(&[first.clone(), second]);
    check_reactions(vec![
        ("a head in three frames", begun(&pieces), SERVED),
        (
            "PING within a head",
            with(frame(PING, 0, 0, &[0; 8])),
            BREAKS,
        ),
        (
            "another head within a head",
            with(frame(HEADERS, WHOLE, 3, &head)),
            BREAKS,
        ),
        (
            "an unknown frame within a head",
            with(frame(UNKNOWN, 0, 0, b"x")),
            BREAKS,
        ),
        (
            "CONTINUATION of another stream",
            with(frame(CONTINUATION, END_HEADERS, 3, &[])),
            BREAKS,
        ),
        (
            "CONTINUATION without a head",
            begun(&[frame(CONTINUATION, END_HEADERS, 1, &head)]),
            BREAKS,
        ),
        (
            "a hundred empty CONTINUATION",
            with(empty.repeat(100)),
            FLOODS,
        ),
        ("a hundred of 1 KB", with(large.concat()), FLOODS),
    ])
    .await;
}

#[tokio::test]
async fn settings_and_their_acknowledgements_are_checked() {
    // ENABLE_PUSH, INITIAL_WINDOW_SIZE and MAX_FRAME_SIZE are 2, 4 and 5.
    let grown = window_update(1, LARGEST - 65_535);
    check_reactions(vec![
        ("ENABLE_PUSH 2", begun(&[setting(2, 2)]), BREAKS),
        (
            "a window of 2^31",
            begun(&[setting(4, LARGEST + 1)]),
            BREAKS,
        ),
        ("frames of 100 bytes", begun(&[setting(5, 100)]), BREAKS),
        ("frames of 16 MiB", begun(&[setting(5, 1 << 24)]), BREAKS),
        (
            "an acknowledgement with a payload",
            begun(&[frame(SETTINGS, ACK, 0, &[0; 6])]),
            BREAKS,
        ),
        (
            "more acknowledgements than settings",
            begun(&[frame(SETTINGS, ACK, 0, &[]).repeat(3)]),
            BREAKS,
        ),
        (
            "a window of a stream that SETTINGS makes larger than 2^31-1",
            begun(&[open(), grown, setting(4, 65_536)]),
            Reaction::GoAway(FLOW_CONTROL_ERROR),
        ),
        (
            "an unknown setting",
            begun(&[setting(0x77, 5), whole(&get_with(&[]))]),
            SERVED,
        ),
    ])
    .await;
}

#[tokio::test]
async fn windows_grow_by_more_than_nothing_and_not_above_their_limit() {
    let too_large = Reaction::GoAway(FLOW_CONTROL_ERROR);
    let stream_too_large = Reaction::Reset(1, FLOW_CONTROL_ERROR);
    check_reactions(vec![
        ("by 0", begun(&[window_update(0, 0)]), BREAKS),
        (
            "a stream's by 0",
            begun(&[open(), window_update(1, 0)]),
            BREAKS,
        ),
        (
            "above 2^31-1",
            begun(&[window_update(0, LARGEST)]),
            too_large,
        ),
        (
            "a stream's above 2^31-1",
            begun(&[open(), window_update(1, LARGEST)]),
            stream_too_large,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_stream_that_gets_more_than_its_window_ends() {
    let (mut files, root) = shop(measures().await);
    // Nothing of a body is read before the question is answered.
    let waits = server(async |_| std::future::pending().await).await;
    files.upstream("waits", &[waits]);
    let guarded = IngressRoute {
        forward_auth: Some(RouteForwardAuth {
            upstream: "waits".to_owned(),
            path: "/".to_owned(),
            response_headers: Vec::new(),
        }),
        ..with_tls(service("shop.example"))
    };
    files.route("shop", guarded);
    let proxy = Proxy::start(&files).await;
    let mut client = RawClient::connect(&proxy, &root).await;
    client.send(&begun(&[open()])).await;
    // The connection's window is larger now. That of a stream stays at 65,535 bytes, since the client does
    // not acknowledge the proxy's settings.
    client.next(WINDOW_UPDATE).await;
    let full = frame(DATA, 0, 1, &[0; LARGEST_FRAME]).repeat(3);
    client.send(&full).await;
    let ping = frame(PING, 0, 0, &[7; 8]);
    client
        .send(&[frame(DATA, 0, 1, &[0; LARGEST_FRAME - 1]), ping].concat())
        .await;
    assert_eq!(client.next(PING).await.payload, [7_u8; 8]);
    client.send(&frame(DATA, 0, 1, &[0])).await;
    assert_eq!(
        client.of_stream().await,
        Reaction::Reset(1, FLOW_CONTROL_ERROR)
    );
    drop(client);
    proxy.end().await;
}

#[tokio::test]
async fn a_head_that_cannot_be_decompressed_ends_the_connection() {
    let with = |more: &[u8]| begun(&[whole(&[&get_with(&[])[..], more].concat())]);
    check_reactions(vec![
        ("index 0", with(&[0x80]), BREAKS),
        (
            "an index behind the tables",
            with(&[0xff, 0x80, 0x01]),
            BREAKS,
        ),
        ("a text without its end", with(&[0, 5, b'x']), BREAKS),
        (
            "the end of Huffman's code as a letter",
            with(b"\0\x01a\x84\xff\xff\xff\xff"),
            BREAKS,
        ),
        ("a number without an end", with(&[0xff; 10]), BREAKS),
        ("a new size of the table at the end", with(&[0x20]), BREAKS),
        (
            "a table above the setting",
            begun(&[whole(
                &[&[0x3f, 0xe2, 0x1f][..], &get_with(&[])[..]].concat(),
            )]),
            BREAKS,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_small_head_that_stands_for_a_large_one_is_refused() {
    // One field of 4 KB goes to the table, and each further byte stands for it.
    let entry = [
        &get_with(&[])[..],
        &[0x40],
        &literal("x-a"),
        &literal(&"b".repeat(3900)),
    ]
    .concat();
    let bomb = |times: usize| begun(&[whole(&[&entry[..], &vec![0xbe; times]].concat())]);
    let value = "b".repeat(33_000);
    let long = fields(&[("x-a", value.as_str())]);
    let long = [
        frame(HEADERS, END_STREAM, 1, &get_with(&[])),
        frame(CONTINUATION, 0, 1, &long[..LARGEST_FRAME]),
        frame(CONTINUATION, 0, 1, &long[LARGEST_FRAME..2 * LARGEST_FRAME]),
        frame(CONTINUATION, END_HEADERS, 1, &long[2 * LARGEST_FRAME..]),
    ];
    check_reactions(vec![
        ("43 KB", bomb(10), Reaction::Answer(1, 431)),
        ("47 MB", bomb(12_000), FLOODS),
        ("one field of 33 KB", begun(&long), Reaction::Answer(1, 431)),
        (
            "120 fields",
            begun(&[whole(&get_with(&[("x-a", "b"); 120]))]),
            Reaction::Answer(1, 431),
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_malformed_field_ends_its_request() {
    let with =
        |name: &'static str, value: &'static str| begun(&[whole(&get_with(&[(name, value)]))]);
    check_reactions(vec![
        ("an upper-case name", with("X-A", "b"), BREAKS),
        ("a name with a space", with("x a", "b"), BREAKS),
        ("an empty name", with("", "b"), BREAKS),
        ("a value with a NUL", with("x-a", "b\0c"), BREAKS),
        (
            "a value with a line's end",
            with("x-a", "b\r\nx-b: c"),
            BREAKS,
        ),
        ("connection", with("connection", "x-a"), MALFORMED),
        ("keep-alive", with("keep-alive", "1"), MALFORMED),
        (
            "proxy-connection",
            with("proxy-connection", "close"),
            MALFORMED,
        ),
        (
            "transfer-encoding",
            with("transfer-encoding", "chunked"),
            MALFORMED,
        ),
        ("upgrade", with("upgrade", "websocket"), MALFORMED),
        ("te: gzip", with("te", "gzip"), MALFORMED),
        ("te: trailers", with("te", "trailers"), SERVED),
        (
            "another host than :authority",
            with("host", "other.example"),
            Reaction::Answer(1, 400),
        ),
        (
            "the same host as :authority",
            with("host", "shop.example"),
            SERVED,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_request_has_each_pseudo_header_field_once_and_first() {
    let request = |fields_of: &[(&str, &str)]| begun(&[whole(&fields(fields_of))]);
    let [method, scheme, authority, path] = PSEUDO;
    let refused = Reaction::Answer(1, 400);
    check_reactions(vec![
        ("no method", request(&[scheme, authority, path]), MALFORMED),
        ("no scheme", request(&[method, authority, path]), MALFORMED),
        ("no path", request(&[method, scheme, authority]), MALFORMED),
        ("no host", request(&[method, scheme, path]), refused),
        (
            "host in place of :authority",
            request(&[method, scheme, path, ("host", "shop.example")]),
            SERVED,
        ),
        (
            "two methods",
            begun(&[whole(&get_with(&[method]))]),
            MALFORMED,
        ),
        (
            "two schemes",
            begun(&[whole(&get_with(&[scheme]))]),
            MALFORMED,
        ),
        (
            "two hosts",
            begun(&[whole(&get_with(&[authority]))]),
            MALFORMED,
        ),
        ("two paths", begun(&[whole(&get_with(&[path]))]), MALFORMED),
        (
            "one after a field",
            request(&[method, scheme, ("x-a", "b"), authority, path]),
            MALFORMED,
        ),
        (
            "one of answers",
            begun(&[whole(&get_with(&[(":status", "200")]))]),
            MALFORMED,
        ),
        (
            "an unknown one",
            begun(&[whole(&get_with(&[(":foo", "b")]))]),
            BREAKS,
        ),
        (
            "an empty path",
            begun(&[whole(&get_but(3, (":path", "")))]),
            MALFORMED,
        ),
        (
            "a path without a slash",
            begun(&[whole(&get_but(3, (":path", "x")))]),
            MALFORMED,
        ),
        (
            "a user in the host",
            begun(&[whole(&get_but(2, (":authority", "u@shop.example")))]),
            refused,
        ),
        (
            "a method with a space",
            begun(&[whole(&get_but(0, (":method", "G ET")))]),
            BREAKS,
        ),
        (
            "CONNECT",
            request(&[(":method", "CONNECT"), authority]),
            Reaction::Answer(1, 405),
        ),
        (
            "CONNECT with a path",
            begun(&[whole(&get_but(0, (":method", "CONNECT")))]),
            MALFORMED,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_content_length_is_that_of_the_body() {
    let post = |length: &'static str, sent: &[u8]| {
        begun(&[
            frame(
                HEADERS,
                END_HEADERS,
                1,
                &post_with(&[("content-length", length)]),
            ),
            frame(DATA, END_STREAM, 1, sent),
        ])
    };
    let twice = post_with(&[("content-length", "4"), ("content-length", "5")]);
    let trailers = frame(HEADERS, END_HEADERS, 1, &fields(&[("x-t", "1")]));
    check_reactions(vec![
        ("the same", post("4", b"abcd"), SERVED),
        ("a shorter one", post("4", b"abcde"), MALFORMED),
        ("a longer one", post("4", b"abc"), MALFORMED),
        ("no number", post("x", b"abcd"), MALFORMED),
        ("a number with a sign", post("+4", b"abcd"), MALFORMED),
        (
            "no body",
            begun(&[whole(&post_with(&[("content-length", "4")]))]),
            MALFORMED,
        ),
        (
            "two",
            begun(&[
                frame(HEADERS, END_HEADERS, 1, &twice),
                frame(DATA, END_STREAM, 1, b"abcd"),
            ]),
            MALFORMED,
        ),
        (
            "trailers that do not end the stream",
            begun(&[open(), frame(DATA, 0, 1, b"abcd"), trailers]),
            MALFORMED,
        ),
    ])
    .await;
}

#[tokio::test]
async fn priorities_and_unknown_frames_change_nothing() {
    let head = get_with(&[]);
    let weighted = [&[0x80, 0, 0, 1, 7][..], &head].concat();
    let own = frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 1]);
    check_reactions(vec![
        (
            "priorities of idle streams",
            begun(&[
                frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]),
                frame(PRIORITY, 0, 9, &[0, 0, 0, 3, 1]),
                frame(HEADERS, WHOLE | WITH_PRIORITY, 11, &weighted),
            ]),
            Reaction::Answer(11, 200),
        ),
        ("a stream that depends on itself", begun(&[own]), MALFORMED),
        (
            "unknown frames",
            begun(&[
                frame(UNKNOWN, 255, 1, b"abc"),
                // PRIORITY_UPDATE (RFC 9218).
                frame(16, 0, 0, b"\0\0\0\x01u=1"),
                whole(&head),
            ]),
            SERVED,
        ),
        // They cost no answer.
        (
            "ten thousand priorities",
            begun(&[
                frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]).repeat(10_000),
                whole(&head),
            ]),
            SERVED,
        ),
    ])
    .await;
}

/// Frames for each of this many streams.
fn for_streams(count: u32, frames: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let all: Vec<_> = (0..count).map(|number| frames(2 * number + 1)).collect();
    begun(&all)
}

#[tokio::test]
async fn a_flood_ends_its_connection() {
    let head = get_with(&[]);
    let malformed = get_with(&[("te", "gzip")]);
    let on = |stream: u32, head: &[u8]| frame(HEADERS, WHOLE, stream, head);
    let opened = |stream: u32| frame(HEADERS, END_HEADERS, stream, &post_with(&[]));
    check_reactions(vec![
        (
            "requests that are reset at once",
            for_streams(200, |stream| [on(stream, &head), reset(stream)].concat()),
            FLOODS,
        ),
        (
            "malformed requests",
            for_streams(200, |stream| on(stream, &malformed)),
            FLOODS,
        ),
        // The proxy is led to reset the streams itself.
        (
            "windows above their limit",
            for_streams(100, |stream| {
                [opened(stream), window_update(stream, LARGEST)].concat()
            }),
            FLOODS,
        ),
        (
            "empty DATA",
            begun(&[open(), frame(DATA, 0, 1, &[]).repeat(2000)]),
            FLOODS,
        ),
    ])
    .await;
}

/// h2 answers them without a bound; KAT counts them before.
#[tokio::test]
async fn a_client_that_reads_has_a_bound_on_its_pings_and_settings() {
    let ping = frame(PING, 0, 0, &[7; 8]);
    let acknowledged = frame(PING, ACK, 0, &[7; 8]);
    let head = get_with(&[]);
    check_reactions(vec![
        (
            "five thousand pings",
            begun(&[ping.repeat(5000)]),
            Reaction::End,
        ),
        (
            "five thousand answers to pings that nobody sent",
            begun(&[acknowledged.repeat(5000)]),
            Reaction::End,
        ),
        (
            "five thousand settings",
            begun(&[setting(4, 70_000).repeat(5000)]),
            Reaction::End,
        ),
        (
            "nine hundred pings",
            begun(&[ping.repeat(900), whole(&head)]),
            SERVED,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_flood_whose_answers_are_not_taken_is_cut_off() {
    let (files, root) = shop(measures().await);
    let limits = IngressLimits {
        write: Duration::from_millis(300),
        control_frames: u32::MAX,
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&files, limits).await;
    let mut other = proxy.http2::<Body>("shop.example", &root).await;
    for flood in [frame(PING, 0, 0, &[7; 8]), setting(4, 70_000)] {
        let socket = TcpSocket::new_v4().unwrap();
        // The answers fill it soon.
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = soon(socket.connect(proxy.https)).await.unwrap();
        let stream = Proxy::tls_over(stream, "shop.example", &[&root], &["h2"]).await;
        let mut client = RawClient(stream.unwrap());
        client.send(&begun(&[])).await;
        let frames = flood.repeat(500);
        // Each of them asks for an answer. The proxy reads no more of them than it can answer.
        soon(async { while client.0.write_all(&frames).await.is_ok() {} }).await;
        let answer = soon(other.send_request(request())).await.unwrap();
        assert_eq!(text(answer).await, "0");
    }
    drop(other);
    proxy.end().await;
}

#[tokio::test]
async fn a_connection_has_so_many_requests_at_once() {
    let waits = server(async |_| std::future::pending().await).await;
    let (files, root) = shop(waits);
    let limits = IngressLimits {
        streams: 4,
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&files, limits).await;
    let mut client = RawClient::connect(&proxy, &root).await;
    let head = get_with(&[]);
    let requests = for_streams(5, |stream| frame(HEADERS, WHOLE, stream, &head));
    client.send(&requests).await;
    assert_eq!(client.of_stream().await, Reaction::Reset(9, REFUSED_STREAM));
    drop(client);
    proxy.end().await;
}

#[tokio::test]
async fn a_drain_is_announced_and_then_names_the_last_request_that_is_answered() {
    let (begin, mut begins) = tokio::sync::mpsc::channel::<()>(1);
    let release = Arc::<Notify>::default();
    let released = Arc::clone(&release);
    let slow = server(move |_| {
        let (begin, released) = (begin.clone(), Arc::clone(&released));
        async move {
            begin.send(()).await.unwrap();
            released.notified().await;
            Response::new(body("shop"))
        }
    })
    .await;
    let (files, root) = shop(slow);
    let proxy = Proxy::start(&files).await;
    let mut client = RawClient::connect(&proxy, &root).await;
    let head = get_with(&[]);
    client.send(&begun(&[whole(&head)])).await;
    soon(begins.recv()).await.unwrap();
    proxy.cancel.cancel();
    // A request that is on its way would still be taken.
    let announced = client.next(GOAWAY).await.payload;
    assert_eq!(
        (number(&announced, 0), number(&announced, 4)),
        (LARGEST, NO_ERROR)
    );
    let ping = client.next(PING).await;
    client.send(&frame(PING, ACK, 0, &ping.payload)).await;
    let last = client.next(GOAWAY).await.payload;
    assert_eq!((number(&last, 0), number(&last, 4)), (1, NO_ERROR));
    // This one comes too late, and its sender knows that nobody has seen it.
    client.send(&frame(HEADERS, WHOLE, 3, &head)).await;
    release.notify_one();
    let answer = client.next(HEADERS).await;
    assert_eq!((answer.stream, status_in(&answer.payload)), (1, 200));
    assert_eq!(client.next(DATA).await.payload, b"shop");
    while let Some(frame) = client.frame().await {
        assert_ne!(frame.stream, 3, "frame {}", frame.kind);
    }
    proxy.end().await;
}
