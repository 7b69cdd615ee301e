//! Why a request is refused: the code a client decides by, and the text it shows. Source: wire spec 4.

use pelton_shard::ReceiptState;
use pelton_shard::broker::{Refusal as Unstored, RequestError};
use pelton_wire::ServerError;

/// A code of the protocol and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: ServerError,
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(code: ServerError, text: impl Into<String>) -> Refusal {
        let text = text.into();
        Refusal { code, text }
    }

    /// A deliberate refusal: other codes look like a hang to clients, which try again.
    pub(crate) fn not_allowed(text: impl Into<String>) -> Refusal {
        Refusal::new(ServerError::NotAllowed, text)
    }

    /// The server starts or stops, or the topic is elsewhere.
    pub(crate) fn not_ready(text: impl Into<String>) -> Refusal {
        Refusal::new(ServerError::ServiceNotReady, text)
    }
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Refusal {
        let code = match &error {
            RequestError::InvalidName { what: "topic", .. } => ServerError::InvalidTopicName,
            RequestError::NotFound { what: "topic", .. } => ServerError::TopicNotFound,
            RequestError::NotFound {
                what: "subscription",
                ..
            } => ServerError::SubscriptionNotFound,
            RequestError::NotFound { .. } => ServerError::ConsumerNotFound,
            RequestError::ConsumerBusy { .. } | RequestError::InUse { .. } => {
                ServerError::ConsumerBusy
            }
            RequestError::KeyRanges { .. } => ServerError::ConsumerAssign,
            RequestError::BacklogQuota { .. } => ServerError::ProducerBlockedQuotaExceededException,
            RequestError::ProducerBusy { .. } => ServerError::ProducerBusy,
            RequestError::ProducerFenced { .. } => ServerError::ProducerFenced,
            RequestError::Terminated { .. } => ServerError::TopicTerminated,
            RequestError::Metadata { .. } => ServerError::Metadata,
            RequestError::Poisoned { .. } => ServerError::Persistence,
            _ => ServerError::NotAllowed,
        };
        Refusal::new(code, error.to_string())
    }
}

/// What a SEND that was not stored is answered with; `None` if it was.
pub(crate) fn of_receipt(state: ReceiptState) -> Option<Refusal> {
    let persistence = |text: &str| Refusal::new(ServerError::Persistence, text);
    match state {
        ReceiptState::Pending | ReceiptState::Stored(_) => None,
        ReceiptState::Unknown => Some(persistence(
            "the log failed before the outcome was known: the message may or may not be stored",
        )),
        ReceiptState::Refused(refusal) => Some(match refusal {
            Unstored::DiskFull => persistence("the disk is full"),
            Unstored::NoSegment => persistence("the log can make no segment"),
            Unstored::Poisoned => persistence("a write or sync failed: restart the server"),
            Unstored::Fenced => Refusal::new(
                ServerError::ProducerFenced,
                "another producer has taken the topic for itself",
            ),
            Unstored::BacklogQuota => Refusal::new(
                ServerError::ProducerBlockedQuotaExceededException,
                "the backlog of the topic has reached its quota",
            ),
            Unstored::Closed => Refusal::not_ready("the producer was closed"),
            Unstored::Terminated => {
                Refusal::new(ServerError::TopicTerminated, "the topic was terminated")
            }
            Unstored::Invalid => {
                Refusal::not_allowed("the message is larger than the server takes")
            }
            Unstored::DelayTooLong => {
                Refusal::not_allowed("it is to be delivered later than the topic's policy allows")
            }
        }),
    }
}
