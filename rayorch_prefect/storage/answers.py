"""The words for what a store answers, or does not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from rayorch_prefect.errors import BadBucketName, RayorchError, StoreError, StoreUnavailable
from rayorch_prefect.storage.client import endpoint, forget_credentials
from rayorch_prefect.storage.redaction import shown_cause, without_secrets

NOT_THERE = ("NoSuchKey", "404")
REFUSED_CONDITION = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")

_NO_S3 = "is AWS_ENDPOINT_URL the address of an S3 server?"
_MAY_NOT = (
    "the credentials may not do this: ask for s3:ListBucket, s3:GetObject, s3:PutObject on this "
    "place"
)
_REGION = "the bucket is in another region: set AWS_REGION to the bucket's"
_SCHEME = "does AWS_ENDPOINT_URL begin with the right one of http:// and https://?"
_FAILED = (
    "the store failed on its side: look into its log (is its disk full?) and run again; a store "
    "that keeps objects as files takes no key below the key of another object"
)

_NO_SPACE = (
    "the store has no space left, or the bucket's quota is used up: free space there or have the "
    "quota raised, and run again; what is published stays"
)

_EXPIRED = "the session token has expired: renew the AWS credentials"
_EXPIRED_WORDS = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
# Words and statuses that may be gone by the next try.
_FOR_NOW = (
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "TooManyRequests",
    "429",
    "500",
    "502",
    "503",
    "504",
    *_EXPIRED_WORDS,
)

# By the store's word or, where it gave none, the HTTP status.
_HINTS = {
    "NoSuchBucket": "check the name of the bucket and AWS_ENDPOINT_URL, or create it",
    "InvalidBucketName": "check the name of the bucket",
    "AccessDenied": _MAY_NOT,
    "401": _MAY_NOT,
    "403": _MAY_NOT,
    "InvalidAccessKeyId": "the store does not know this access key: check the AWS credentials",
    "SignatureDoesNotMatch": "the secret key does not fit: check the AWS credentials",
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "InvalidToken": "the session token is not valid: renew the AWS credentials",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "PermanentRedirect": _REGION,
    "301": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "InvalidObjectState": "the object is archived: restore it first",
    "InvalidArgument": "the store does not take such a request, often because of the key: rename "
    "the object or choose another prefix",
    "KeyTooLongError": "the store does not take such a long key: rename the object",
    "BadDigest": "the bytes were changed on their way: run again",
    "SlowDown": "the store asks for fewer requests: run fewer microbatches at a time",
    "InternalError": _FAILED,
    "InsufficientStorage": _NO_SPACE,
    "XMinioStorageFull": _NO_SPACE,
    "XMinioAdminBucketQuotaExceeded": _NO_SPACE,
    "QuotaExceeded": _NO_SPACE,
    "507": _NO_SPACE,
    # S3 servers name their errors: a bare status may come from something else.
    "500": f"{_FAILED}; {_NO_S3}",
    "502": f"{_FAILED}; {_NO_S3}",
    "503": f"{_FAILED}; {_NO_S3}",
    "504": f"{_FAILED}; {_NO_S3}",
    "400": f"check AWS_REGION; {_NO_S3}",
    "404": _NO_S3,
    "405": _NO_S3,
    "501": _NO_S3,
}

_CREDENTIALS = "check the AWS credentials: they could not be loaded"
# No answer, half an answer, or credentials that their source did not give out just now.
_CUT_OFF = (
    boto.ConnectionError,
    boto.ConnectionClosedError,
    boto.ReadTimeoutError,
    boto.IncompleteReadError,
    boto.ResponseStreamingError,
    HTTPError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
)
_NETWORK = "check AWS_ENDPOINT_URL, the region and the network"
# The first that fits, so the narrower come first.
_HINTS_BY_TYPE: tuple[tuple[type[Exception], str], ...] = (
    (
        boto.NoCredentialsError,
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role",
    ),
    (boto.PartialCredentialsError, _CREDENTIALS),
    (boto.CredentialRetrievalError, _CREDENTIALS),
    (boto.TokenRetrievalError, _CREDENTIALS),
    (boto.SSOError, _CREDENTIALS),
    (boto.ParamValidationError, "check the name of the bucket and the key"),
    (boto.SSLError, _SCHEME),
    (
        boto.ReadTimeoutError,
        "the store took the request and did not answer in time: check that it is well, and that "
        "AWS_ENDPOINT_URL is its address",
    ),
    (boto.ConnectionClosedError, f"the connection was closed without an answer; {_NO_S3}"),
    (boto.ConnectionError, _NETWORK),
    (HTTPError, _NETWORK),
    (boto.HTTPClientError, f"{_NETWORK}, and the AWS credentials for line breaks"),
    (ResponseParserError, _NO_S3),
)


def error_code(error: ClientError) -> str:
    """The store's word for what went wrong, or the HTTP status where it gave none."""
    answer = error.response
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
    return str(answer.get("Error", {}).get("Code") or status)


@contextmanager
def explained(action: str, uri: str) -> Iterator[None]:
    """Turn what boto3 raises inside into a StoreError: action, uri, cause and what to do.

    BadBucketName is one that is the caller's own fault. StoreUnavailable is one that the next try
    may not meet; for it, credentials that have expired are asked for anew.
    """
    try:
        yield
    except ClientError as error:
        code = error_code(error)
        said = error.response.get("Error", {}).get("Message", "")
        told = _sentence(action, uri, f"{code} {said}", _HINTS.get(code) or _by_status(error))
        if code in _EXPIRED_WORDS:
            forget_credentials()
        raise _class_of(error, code)(told) from shown_cause(error)
    except (BotoCoreError, ResponseParserError, HTTPError) as error:
        told = _sentence(action, uri, str(error), _hint_by_type(error))
        for_now = isinstance(error, _CUT_OFF) and not isinstance(error, boto.SSLError)
        kind = StoreUnavailable if for_now else StoreError
        raise kind(told) from shown_cause(error)
    except RecursionError:
        # boto3 asks a server that redirects all requests for the region, and that again, and so on.
        cause = "every request is redirected"
        raise StoreError(_sentence(action, uri, cause, f"{_REGION}; {_SCHEME}")) from None


def _class_of(error: ClientError, code: str) -> type[RayorchError]:
    if code == "InvalidBucketName":
        return BadBucketName
    return StoreUnavailable if code in _FOR_NOW or _status(error) in _FOR_NOW else StoreError


def _status(error: ClientError) -> str:
    return str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def _by_status(error: ClientError) -> str | None:
    """For a word that is not known here, where the status alone says what to do."""
    return _NO_SPACE if _status(error) == "507" else None


def expected(answer: Mapping[str, object], name: str, action: str, uri: str) -> object:
    """A field that every S3 server sends. Raises StoreError: what answers is none."""
    value = answer.get(name)
    if value is None:
        raise StoreError(_sentence(action, uri, f"the answer has no {name}", _NO_S3))
    return value


def etag_of(answer: Mapping[str, object], action: str, uri: str) -> str:
    """The ETag of an answer, without quotes. Raises StoreError if there is none."""
    return str(expected(answer, "ETag", action, uri)).strip('"')


def _hint_by_type(error: Exception) -> str | None:
    return next((hint for kind, hint in _HINTS_BY_TYPE if isinstance(error, kind)), None)


def _sentence(action: str, uri: str, cause: str, hint: str | None) -> str:
    text = without_secrets(f"could not {action} {uri}: {cause.strip()}")
    advice = f"{text}; {hint}" if hint else text
    where = endpoint()
    return f"{advice} (endpoint {where})" if where else advice
