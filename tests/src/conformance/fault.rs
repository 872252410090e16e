//! What can go wrong, and what each kind of request then comes to: one line a fault.
//!
//! A line says what the *server* (or the fabric) does and what that means for one request. What a whole GET
//! comes to, under a policy, is worked out from that in `expect`.

use std::time::Duration;

use s3engine::Reason;
use s3engine_pool::RegisterError;
use s3engine_s3::fabric::TokenError;
use s3sim::{Action, Kind};

use super::host::LATE;
use crate::Failure;

/// What a request comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What was asked for, or the object's own error.
    Honest,
    /// An answer that the bytes did not come by RDMA. Nothing is written any more; HTTP may deliver.
    Declined(Reason),
    /// The same where asking again may help.
    FabricFailed(Reason),
    /// No answer: a remote may still write.
    Doubt(Reason),
    /// An answer that asks to come again; in the end `http-error`.
    Busy,
    /// An answer that is final: one of these reasons. Neither another attempt nor HTTP would change it.
    Final(&'static [Reason]),
    /// An answer that contradicts itself: one of these reasons, or a body that breaks off, worth asking again.
    Garbled(&'static [Reason]),
    /// The object has a new version from this request on.
    Changed,
    /// The caller ends the GET while it waits for an answer that does not come.
    Ended(Reason),
}

/// Which of the requests of a kind are hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// The first.
    Once,
    /// The second.
    Later,
}

/// How the caller ends a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// By cancelling it when its request is out.
    Cancel,
    /// By a deadline.
    Deadline(Duration),
}

/// One way in which things go wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its name in a line about a case.
    pub name: &'static str,
    /// What the server does to which requests.
    pub rules: Vec<(Kind, Action)>,
    /// What it does to the first request with a token, if that is something else.
    pub first: Option<Action>,
    /// What a request with a token comes to: the first one.
    pub rdma: Answer,
    /// What a plain GET comes to.
    pub http: Answer,
    /// What a HEAD comes to.
    pub head: Answer,
    /// Kinds of requests where it is seen only in an answer with bytes of the object: errors and empty objects
    /// are answered as ever.
    pub needs_bytes: Vec<Kind>,
    /// The server ends connections after whole answers: a request that was just handed to one may be lost.
    pub hangs_up: bool,
    /// RDMA claims bytes that never came, which nobody can see.
    pub lies: bool,
    /// Nobody confirms that a remote has stopped writing.
    pub unconfirmed: bool,
    /// Which requests it hits.
    pub whens: &'static [When],
    /// How the caller ends the GET.
    pub ends: Option<Ends>,
}

impl Fault {
    fn of(name: &'static str) -> Self {
        Self {
            name,
            rules: Vec::new(),
            first: None,
            rdma: Answer::Honest,
            http: Answer::Honest,
            head: Answer::Honest,
            needs_bytes: Vec::new(),
            hangs_up: false,
            lies: false,
            unconfirmed: false,
            whens: &[When::Always, When::Once, When::Later],
            ends: None,
        }
    }

    fn rdma(mut self, action: Action, answer: Answer) -> Self {
        self.rules.push((Kind::Rdma, action));
        self.rdma = answer;
        self
    }

    fn http(mut self, action: Action, answer: Answer) -> Self {
        self.rules.push((Kind::Http, action));
        self.http = answer;
        self
    }

    fn head(mut self, action: Action, answer: Answer) -> Self {
        self.rules.push((Kind::Head, action));
        self.head = answer;
        self
    }

    /// There is no second HEAD.
    fn not_later(mut self) -> Self {
        self.whens = &[When::Always, When::Once];
        self
    }

    fn both(self, action: Action, rdma: Answer, http: Answer) -> Self {
        self.rdma(action.clone(), rdma).http(action, http).always()
    }

    /// The rule added last is seen only in answers with bytes.
    fn needs_bytes(mut self) -> Self {
        self.needs_bytes
            .extend(self.rules.last().map(|rule| rule.0));
        self
    }

    fn hangs_up(mut self) -> Self {
        self.hangs_up = true;
        self
    }

    fn lies(mut self) -> Self {
        self.lies = true;
        self
    }

    fn always(mut self) -> Self {
        self.whens = &[When::Always];
        self
    }

    fn ended_by(mut self, ends: Ends) -> Self {
        self.ends = Some(ends);
        self
    }

    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self::of("no fault").always()
    }

    /// Whether a server writes when nobody waits any more.
    pub fn writes_late(&self) -> bool {
        let late = |(_, action): &(Kind, Action)| matches!(action, Action::WriteLate { .. });
        self.rules.iter().any(late)
    }
}

const HTTP_ERROR: Answer = Answer::Final(&[Reason::HttpError]);
const TIMEOUT: Answer = Answer::Doubt(Reason::RdmaTimeout);
const BROKEN: Answer = Answer::Doubt(Reason::RdmaError);

fn declined(reason: Reason) -> Answer {
    Answer::Declined(reason)
}

fn wrong_bytes(value: Option<u64>, delta: Option<i64>) -> Action {
    Action::WrongBytes { value, delta }
}

fn status(code: u16, s3_code: Option<&str>) -> Action {
    Action::Status {
        code,
        s3_code: s3_code.map(str::to_owned),
        headers: Default::default(),
    }
}

fn busy() -> Action {
    Action::SlowDown { retry_after: None }
}

fn cut(after: Option<u64>) -> Action {
    Action::Cut { after }
}

fn reset(after: Option<u64>) -> Action {
    Action::Reset { after }
}

fn stall(after: Option<u64>, pause: Duration) -> Action {
    let ms = pause.as_millis() as u64;
    Action::Stall { after, ms }
}

fn answer_late(by: Duration) -> Action {
    let ms = by.as_millis() as u64;
    Action::AnswerLate { ms }
}

/// So few bytes that every answer has more, errors too.
const FEW: Option<u64> = Some(100);
/// A pause that nobody minds.
const SHORT: Duration = Duration::from_millis(30);

/// What servers answer to tokens, short of delivering.
pub fn refusals_of_rdma() -> Vec<Fault> {
    use Reason::*;
    let fault = |name, action, reason| {
        let fault = Fault::of(name).rdma(action, declined(reason));
        fault.needs_bytes()
    };
    vec![
        fault("decline-with-body", Action::DeclineWithBody, ServerDeclined),
        fault(
            "decline-with-error",
            Action::DeclineWithError,
            ServerDeclined,
        ),
        fault("ignore-token", Action::IgnoreToken, ReplyMissing),
        fault("ignore-token-empty", Action::IgnoreTokenEmpty, ReplyMissing),
        fault("one byte more", wrong_bytes(None, Some(1)), BytesMismatch),
        fault("one byte less", wrong_bytes(None, Some(-1)), BytesMismatch),
        fault("no bytes told", wrong_bytes(Some(0), None), BytesMismatch),
        fault("missing-bytes", Action::MissingBytes, BytesMissing),
        fault("missing-reply", Action::MissingReply, ReplyMissing),
        fault("token-rejected", Action::TokenRejected, TokenRejected),
        fault(
            "token-rejected-aistor",
            Action::TokenRejectedAistor,
            TokenRejected,
        ),
        fault(
            "rdma wrong-range",
            Action::WrongRange { shift: 10 },
            BytesMismatch,
        ),
        fault(
            "rdma wrong-length",
            Action::WrongLength { delta: 5 },
            BytesMismatch,
        ),
        Fault::of("rdma-transfer-failed")
            .rdma(Action::RdmaTransferFailed, Answer::FabricFailed(RdmaError))
            .needs_bytes(),
        Fault {
            first: Some(Action::DeclineWithBody),
            ..fault(
                "declined, then ignored",
                Action::IgnoreToken,
                ServerDeclined,
            )
            .always()
        },
        Fault::of("claim-without-writing")
            .rdma(Action::ClaimWithoutWriting, Answer::Honest)
            .lies(),
    ]
}

/// What else happens to requests with tokens.
pub fn troubles_of_rdma() -> Vec<Fault> {
    let fault = |name, action, answer| Fault::of(name).rdma(action, answer);
    vec![
        fault("rdma cut", cut(None), BROKEN),
        fault("rdma reset", reset(None), BROKEN),
        fault("rdma 408", status(408, None), TIMEOUT),
        fault("rdma 502", status(502, None), BROKEN),
        fault("rdma 504", status(504, None), TIMEOUT),
        fault("rdma answer a bit late", answer_late(SHORT), Answer::Honest),
        fault("rdma stall", stall(None, SHORT), Answer::Honest),
        fault("rdma cut after", cut(FEW), Answer::Honest).hangs_up(),
        fault("rdma reset after", reset(FEW), Answer::Honest).hangs_up(),
        fault(
            "rdma trickle",
            Action::Trickle { bytes: 9000, ms: 1 },
            Answer::Honest,
        ),
        fault("rdma 500", status(500, Some("InternalError")), Answer::Busy),
        fault("rdma slow-down", busy(), Answer::Busy),
        fault("rdma 404", status(404, Some("NoSuchKey")), HTTP_ERROR),
        fault("rdma 403", status(403, Some("AccessDenied")), HTTP_ERROR),
        fault("rdma 401", status(401, None), HTTP_ERROR),
        fault("rdma 301", status(301, None), HTTP_ERROR),
        fault("rdma 501", status(501, None), HTTP_ERROR),
        fault("rdma swap", Action::Swap, Answer::Changed),
    ]
}

/// What happens to plain GETs.
pub fn troubles_of_http() -> Vec<Fault> {
    // A wrong length looks like an object that does not fit, or like another version, where one is known.
    const GARBLED: Answer =
        Answer::Garbled(&[Reason::HttpError, Reason::StaleBuffer, Reason::Modified]);
    let fault = |name, action, answer| Fault::of(name).http(action, answer);
    vec![
        fault("http cut", cut(None), Answer::Busy),
        fault("http cut after", cut(FEW), Answer::Busy)
            .needs_bytes()
            .hangs_up(),
        fault("http reset", reset(None), Answer::Busy),
        fault("http reset after", reset(FEW), Answer::Busy)
            .needs_bytes()
            .hangs_up(),
        fault("http answer a bit late", answer_late(SHORT), Answer::Honest),
        fault("http stall", stall(FEW, SHORT), Answer::Honest),
        fault(
            "http trickle",
            Action::Trickle { bytes: 9000, ms: 1 },
            Answer::Honest,
        ),
        fault(
            "http wrong-length",
            Action::WrongLength { delta: 5 },
            GARBLED,
        ),
        fault(
            "http wrong-range",
            Action::WrongRange { shift: 7 },
            HTTP_ERROR,
        ),
        fault("http slow-down", busy(), Answer::Busy),
        fault("http 500", status(500, Some("InternalError")), Answer::Busy),
        fault("http 504", status(504, None), Answer::Busy),
        fault("http 404", status(404, Some("NoSuchKey")), HTTP_ERROR),
        fault("http 403", status(403, Some("AccessDenied")), HTTP_ERROR),
        fault("http 301", status(301, None), HTTP_ERROR),
        fault("http 204", status(204, None), HTTP_ERROR),
        fault("http swap", Action::Swap, Answer::Changed),
    ]
}

/// What happens to HEAD, to every request, and by RDMA and HTTP one after the other.
pub fn troubles_of_both() -> Vec<Fault> {
    let denied = || status(403, Some("AccessDenied"));
    let declined_then = |name, action, http| {
        let decline = declined(Reason::ServerDeclined);
        let fault = Fault::of(name).rdma(Action::DeclineWithError, decline);
        fault.needs_bytes().http(action, http).always()
    };
    let wrong_range = Action::WrongRange { shift: 7 };
    vec![
        Fault::of("head slow-down")
            .head(busy(), Answer::Busy)
            .not_later(),
        Fault::of("head 403").head(denied(), HTTP_ERROR).not_later(),
        Fault::of("access denied")
            .both(denied(), HTTP_ERROR, HTTP_ERROR)
            .head(denied(), HTTP_ERROR),
        Fault::of("slow-down").both(busy(), Answer::Busy, Answer::Busy),
        Fault::of("cut").both(cut(None), BROKEN, Answer::Busy),
        declined_then("declined, then busy", busy(), Answer::Busy),
        declined_then("declined, then cut", cut(FEW), Answer::Busy)
            .needs_bytes()
            .hangs_up(),
        declined_then("declined, then wrong-range", wrong_range, HTTP_ERROR),
        Fault::of("cut, then denied")
            .rdma(cut(None), BROKEN)
            .http(denied(), HTTP_ERROR)
            .always(),
    ]
}

/// Servers that say nothing to requests with tokens for longer than a brisk host waits.
pub fn silences_of_rdma() -> Vec<Fault> {
    let ms = LATE.as_millis() as u64;
    vec![
        Fault::of("rdma never-answer").rdma(Action::NeverAnswer, TIMEOUT),
        Fault::of("rdma answer-late").rdma(answer_late(LATE), TIMEOUT),
        Fault::of("write-late")
            .rdma(Action::WriteLate { ms }, TIMEOUT)
            .needs_bytes(),
    ]
}

/// The same, to HEAD and plain GETs.
pub fn silences_of_http() -> Vec<Fault> {
    let never = || Action::NeverAnswer;
    vec![
        Fault::of("http never-answer").http(never(), Answer::Busy),
        Fault::of("http stall within")
            .http(stall(FEW, LATE), Answer::Busy)
            .needs_bytes(),
        Fault::of("head never-answer")
            .head(never(), Answer::Busy)
            .always(),
        Fault::of("never-answer").both(never(), TIMEOUT, Answer::Busy),
    ]
}

/// Callers who end their GETs while nobody answers.
pub fn ends() -> Vec<Fault> {
    let fault = |name, reason, ends| {
        let (never, ended) = (|| Action::NeverAnswer, Answer::Ended(reason));
        let fault = Fault::of(name).both(never(), ended, ended);
        fault.head(never(), ended).ended_by(ends)
    };
    let deadline = Ends::Deadline(Duration::from_millis(500));
    vec![
        fault("cancel", Reason::Cancelled, Ends::Cancel),
        fault("deadline", Reason::Deadline, deadline),
    ]
}

/// What goes wrong in the fabric itself, and what that means for a request with a token.
pub fn failures_of_the_fabric() -> Vec<(Failure, Fault)> {
    let fault = |name, reason| Fault {
        rdma: declined(reason),
        ..Fault::of(name).always()
    };
    let refused = RegisterError {
        errno: Some(12),
        text: "no".into(),
    };
    let no_token = TokenError::Provider { text: "no".into() };
    let long_token = TokenError::TooLong {
        len: 1 << 33,
        limit: u32::MAX.into(),
    };
    vec![
        (
            Failure::Register(refused),
            fault("nothing registers", Reason::RegistrationFailed),
        ),
        (
            Failure::Token(no_token),
            fault("no tokens", Reason::TokenFailed),
        ),
        (
            Failure::Token(long_token),
            fault("windows too long to say", Reason::ProtocolLimit),
        ),
        (
            Failure::ForgedToken,
            // A missing object is missing, whatever the token.
            Fault {
                needs_bytes: vec![Kind::Rdma],
                ..fault("forged tokens", Reason::TokenRejected)
            },
        ),
        (Failure::SegmentLimit(2 << 20), Fault::none()),
    ]
}

/// A doubt that nobody ends.
pub fn unconfirmed() -> Fault {
    let fault = Fault::of("cut, revocation unconfirmed").rdma(cut(None), BROKEN);
    Fault {
        unconfirmed: true,
        ..fault.always()
    }
}
