#include "functions/http_message.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "boost/beast/http/status.hpp"

namespace rekindle::functions {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = absl::ascii_tolower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

absl::string_view Path(const HttpRequestHead& head) {
  absl::string_view target = View(head.target());
  target = target.substr(0, target.find('?'));
  for (absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    const size_t path = target.find('/', scheme.size());
    return path == absl::string_view::npos ? "/" : target.substr(path);
  }
  return target;
}

std::string QueryParameter(const HttpRequestHead& head, absl::string_view name) {
  absl::string_view target = View(head.target());
  size_t query = target.find('?');
  if (query == absl::string_view::npos) return "";
  for (absl::string_view part : absl::StrSplit(target.substr(query + 1), '&')) {
    std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (pair.first == name) return DecodePercent(pair.second);
  }
  return "";
}

std::string DecodePercent(absl::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0) {
      decoded += static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

HttpAnswer& HttpAnswer::Add(absl::string_view name, absl::string_view value) {
  absl::StrAppend(&headers_, name, ": ");
  for (char c : value) headers_ += absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? ' ' : c;
  headers_ += "\r\n";
  return *this;
}

HttpAnswer& HttpAnswer::SetBody(std::string body, absl::string_view content_type) {
  return SetBody(std::make_shared<const std::string>(std::move(body)), content_type);
}

HttpAnswer& HttpAnswer::SetBody(std::shared_ptr<const std::string> body, absl::string_view content_type) {
  body_ = std::move(body);
  return Add("Content-Type", content_type);
}

std::string HttpAnswer::Head(unsigned minor, bool keep_alive) const {
  boost::beast::string_view reason =
      boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(static_cast<unsigned>(status_)));
  std::string head = absl::StrCat("HTTP/1.1 ", status_, " ", View(reason), "\r\n", headers_);
  if (status_ != 204) absl::StrAppend(&head, "Content-Length: ", body_ ? body_->size() : 0, "\r\n");
  if (!keep_alive) {
    head += "Connection: close\r\n";
  } else if (minor == 0) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

}  // namespace rekindle::functions
