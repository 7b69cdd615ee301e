//! A connection begins, proves who it is, and stays alive.

use crate::message::message;
use crate::types::{FeatureFlags, Secret};

message! {
    /// The first command of a client. Only its version may be required of it.
    Connect<'a> {
        1 required client_version: &'a str,
        /// How clients of protocol versions below 6 name the method.
        2 optional auth_method: i32,
        3 optional auth_data: Secret<'a>,
        4 optional protocol_version: i32 = 0,
        5 optional auth_method_name: &'a str,
        6 optional proxy_to_broker_url: &'a str,
        7 optional original_principal: &'a str,
        8 optional original_auth_data: Secret<'a>,
        9 optional original_auth_method: &'a str,
        10 optional feature_flags: FeatureFlags,
        11 optional proxy_version: &'a str,
    }
}

message! {
    /// The answer to CONNECT.
    Connected<'a> {
        1 required server_version: &'a str,
        /// [`crate::negotiated_version`].
        2 optional protocol_version: i32 = 0,
        /// Bytes. Always set: clients assume 5 MiB otherwise.
        3 optional max_message_size: i32,
        4 optional feature_flags: FeatureFlags,
    }
}

message! {
    /// Asks for a [`Pong`]; either side may.
    Ping {}
}

message! {
    /// Says that this side is alive.
    Pong {}
}

message! {
    /// What a method needs to prove who a client is.
    AuthData<'a> {
        1 optional auth_method_name: &'a str,
        2 optional auth_data: Secret<'a>,
    }
}

message! {
    /// The server wants fresh credentials. Java needs both fields of the challenge.
    AuthChallenge<'a> {
        1 optional server_version: &'a str,
        2 optional challenge: AuthData<'a>,
        3 optional protocol_version: i32 = 0,
    }
}

message! {
    /// The answer to AUTH_CHALLENGE.
    AuthResponse<'a> {
        1 optional client_version: &'a str,
        2 optional response: AuthData<'a>,
        3 optional protocol_version: i32 = 0,
    }
}
