// Requests and answers of the HTTP servers.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "boost/beast/http/message.hpp"
#include "boost/beast/http/string_body.hpp"

namespace rekindle::functions {

using HttpRequestHead = boost::beast::http::request_header<>;
using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;

inline absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }
inline absl::string_view Header(const HttpRequestHead& head, absl::string_view name) {
  return View(head[boost::beast::string_view(name.data(), name.size())]);
}
// Without the query, and without scheme and host, which a request may have there (RFC 9112, 3.2.2).
absl::string_view Path(const HttpRequestHead& head);
// A parameter's value in the query, decoded; empty where there is none.
std::string QueryParameter(const HttpRequestHead& head, absl::string_view name);
// "%24" becomes "$". What is no such escape stays.
std::string DecodePercent(absl::string_view text);

class HttpAnswer {
 public:
  explicit HttpAnswer(int status) : status_(status) {}
  HttpAnswer(int status, std::string body) : HttpAnswer(status) { SetBody(std::move(body)); }

  // What a header can't hold (ends of lines, other control characters) becomes a space.
  HttpAnswer& Add(absl::string_view name, absl::string_view value);
  HttpAnswer& SetBody(std::string body, absl::string_view content_type = "application/json");
  // A body that others hold as well.
  HttpAnswer& SetBody(std::shared_ptr<const std::string> body, absl::string_view content_type);
  // The connection is closed after it.
  HttpAnswer& Close() {
    close_ = true;
    return *this;
  }

  bool close() const { return close_; }
  const std::shared_ptr<const std::string>& body() const { return body_; }  // nullptr: none
  // The status line and the headers for a request of HTTP 1.`minor`.
  std::string Head(unsigned minor, bool keep_alive) const;

 private:
  int status_;
  bool close_ = false;
  std::string headers_;
  std::shared_ptr<const std::string> body_;
};

}  // namespace rekindle::functions
