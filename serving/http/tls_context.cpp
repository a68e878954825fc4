#include "serving/http/tls_context.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/logging.h"

namespace moesaic {
namespace {

namespace ssl = boost::asio::ssl;

void Require(const boost::system::error_code& error, const char* flag,
             const std::filesystem::path& file) {
  if (!error) return;
  Fail(ErrorKind::kInvalidArgument, "{} {}: {}", flag, file.string(), error.message());
}

void WarnOfTime(const X509* certificate, const std::filesystem::path& file) {
  if (certificate == nullptr) return;
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    LogWarn("--ssl-certfile {}: the certificate has expired; clients will refuse it",
            file.string());
  } else if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    LogWarn("--ssl-certfile {}: the certificate is not valid yet; clients will refuse it",
            file.string());
  }
}

}  // namespace

TlsContext::TlsContext(std::filesystem::path certificate_file, std::filesystem::path key_file)
    : certificate_file_(std::move(certificate_file)),
      key_file_(key_file.empty() ? certificate_file_ : std::move(key_file)),
      current_(Read()) {}

void TlsContext::Reload() {
  auto context = Read();
  MutexLock lock(mutex_);
  current_ = std::move(context);
}

std::shared_ptr<ssl::context> TlsContext::current() const {
  MutexLock lock(mutex_);
  return current_;
}

std::shared_ptr<ssl::context> TlsContext::Read() const {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  // A client may make the server work for nothing with each renegotiation.
  SSL_CTX_set_options(native,
                      SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_SINGLE_DH_USE);
  // Clients resume by tickets, which cost the server no memory.
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  // A connection that waits has no buffers for records.
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);
  boost::system::error_code error;
  // Without this OpenSSL would ask on the terminal for the password of an encrypted key.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return ""; }, error);
  context->use_certificate_chain_file(certificate_file_.string(), error);
  Require(error, "--ssl-certfile", certificate_file_);
  context->use_private_key_file(key_file_.string(), ssl::context::pem, error);
  Require(error, "--ssl-keyfile", key_file_);
  WarnOfTime(SSL_CTX_get0_certificate(native), certificate_file_);
  return context;
}

}  // namespace moesaic
