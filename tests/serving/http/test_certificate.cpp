#include "tests/serving/http/test_certificate.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

#include "core/base/check.h"

namespace moesaic {
namespace {

constexpr long kDayS = 24 * 3600;

using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using CertificatePtr = std::unique_ptr<X509, decltype(&X509_free)>;
using FilePtr = std::unique_ptr<FILE, decltype(&fclose)>;

void AddText(X509_NAME* name, const char* field, const char* text) {
  CHECK_EQ(X509_NAME_add_entry_by_txt(name, field, MBSTRING_ASC,
                                      reinterpret_cast<const unsigned char*>(text), -1, -1, 0),
           1);
}

}  // namespace

TestCertificate WriteTestCertificate(const std::filesystem::path& directory, const char* name,
                                     bool expired) {
  const KeyPtr key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const CertificatePtr certificate(X509_new(), X509_free);
  CHECK(key != nullptr && certificate != nullptr);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -2 * kDayS);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), expired ? -kDayS : kDayS);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  AddText(subject, "O", name);
  AddText(subject, "CN", "localhost");
  X509_set_issuer_name(certificate.get(), subject);
  X509_EXTENSION* const names =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  CHECK(names != nullptr);
  X509_add_ext(certificate.get(), names, -1);
  X509_EXTENSION_free(names);
  CHECK(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0);

  TestCertificate files;
  files.certificate = directory / (std::string(name) + ".crt");
  files.key = directory / (std::string(name) + ".key");
  const FilePtr certificate_file(fopen(files.certificate.c_str(), "w"), fclose);
  const FilePtr key_file(fopen(files.key.c_str(), "w"), fclose);
  CHECK_EQ(PEM_write_X509(certificate_file.get(), certificate.get()), 1);
  CHECK_EQ(PEM_write_PrivateKey(key_file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr),
           1);
  return files;
}

}  // namespace moesaic
