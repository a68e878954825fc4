// TlsContext: the certificate and the private key that the server shows its clients, as files have
// them, and how it speaks TLS (1.2 and later).
//
// Thread contract: any thread.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <filesystem>
#include <memory>

#include "core/base/mutex.h"

namespace moesaic {

class TlsContext {
 public:
  // PEM files; the first certificate is the server's, those of its issuers follow. The private key
  // is in the same file where `key_file` is empty. Throws Error(kInvalidArgument) when the files
  // cannot be read or do not fit together.
  TlsContext(std::filesystem::path certificate_file, std::filesystem::path key_file);

  // Reads the files again, for connections that come from now on. Throws as above; nothing has
  // changed then.
  void Reload() EXCLUDES(mutex_);

  // For a new connection, which keeps what it needs of it.
  std::shared_ptr<boost::asio::ssl::context> current() const EXCLUDES(mutex_);

 private:
  std::shared_ptr<boost::asio::ssl::context> Read() const;

  const std::filesystem::path certificate_file_;
  const std::filesystem::path key_file_;
  mutable Mutex mutex_;
  // Shared: a connection begins with the one that there is, while another takes its place.
  std::shared_ptr<boost::asio::ssl::context> current_ GUARDED_BY(mutex_);
};

}  // namespace moesaic
