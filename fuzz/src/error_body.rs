//! The XML of an S3 error.

use s3engine_s3::http::ErrorBody;

/// Reads the bytes as the body of an error.
pub fn error_body(data: &[u8]) -> bool {
    let body = ErrorBody::parse(data);
    for text in texts(&body).into_iter().flatten() {
        assert!(!text.is_empty() && text.len() <= 1024, "{text:?}");
        assert_eq!(text, text.trim());
    }
    // A body that breaks off says nothing else than the whole one does.
    for eighth in 0..8 {
        let cut = ErrorBody::parse(&data[..data.len() * eighth / 8]);
        for (before, after) in texts(&cut).into_iter().zip(texts(&body)) {
            assert!(before.is_none() || before == after, "{before:?} {after:?}");
        }
        let (before, after) = (cut.actual_object_size, body.actual_object_size);
        assert!(before.is_none() || before == after, "{before:?} {after:?}");
    }
    body != ErrorBody::default()
}

fn texts(body: &ErrorBody) -> [Option<&str>; 6] {
    let ErrorBody {
        code,
        message,
        request_id,
        host_id,
        region,
        endpoint,
        actual_object_size: _,
    } = body;
    [code, message, request_id, host_id, region, endpoint].map(Option::as_deref)
}
