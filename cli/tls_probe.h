// What becomes of a connection over TLS: of one that ends before it is made gRPC does not say how far it
// came.
#pragma once

#include <string>

namespace rekindle::cli {

enum class TlsEnd {
  kBefore,  // it was not reached, or closed the connection before it had spoken TLS: that says nothing of
            // files
  kAfter,   // it spoke TLS, and went when it had our certificate, or refused that in TLS's words
  kNone,    // it has taken the certificate
};

// PEM files: who vouches for the daemon, and this side's.
struct TlsProbeFiles {
  std::string ca, certificate, key;
};

// Makes a connection to `host` ("HOST:PORT"), and closes it. One that `files.ca` does not vouch for is not
// shown the certificate: kBefore. Takes some seconds at most. Thread-safe.
TlsEnd ProbeTls(const std::string& host, const TlsProbeFiles& files);

}  // namespace rekindle::cli
