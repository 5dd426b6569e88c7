// Asks a daemon to start copies and says when it asked, so that a start can be timed without the command's
// own.
//
//   start_requests HOST < LINES
//
// HOST is unix:///path. A line is `clone JSON` or `template JSON`, with a RestoreRequest or a
// StartFromTemplateRequest; the answer is a line of JSON: {"asked": seconds of CLOCK_MONOTONIC, "started":
// JobStarted} or {"asked": ..., "error": text}.
#include <google/protobuf/util/json_util.h>
#include <time.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/client.h"

namespace rekindle {
namespace {

double Now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <typename Request>
absl::Status Parse(const std::string& json, Request* request) {
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, request);
  return parsed.ok() ? absl::OkStatus()
                     : absl::InvalidArgumentError(absl::StrCat(json, ": ", parsed.ToString()));
}

absl::Status Ask(cli::Client& client, const std::string& line, nlohmann::json& answer) {
  const size_t space = line.find(' ');
  const std::string what = line.substr(0, space),
                    json = space == std::string::npos ? "{}" : line.substr(space + 1);
  std::string started;
  const auto keep = [&started](const v1::JobEvent& event) {
    if (event.has_started()) google::protobuf::util::MessageToJsonString(event.started(), &started);
  };
  v1::RestoreRequest clone;
  v1::StartFromTemplateRequest fork;
  const bool from_template = what == "template";
  if (!from_template && what != "clone")
    return absl::InvalidArgumentError(absl::StrCat("a line begins with ", what));
  absl::Status status = from_template ? Parse(json, &fork) : Parse(json, &clone);
  if (!status.ok()) return status;
  answer["asked"] = Now();
  status = from_template ? client.StartFromTemplate(fork, keep) : client.Restore(clone, keep);
  if (!status.ok()) return status;
  answer["started"] = nlohmann::json::parse(started, nullptr, /*allow_exceptions=*/false);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  cli::Endpoint endpoint;
  endpoint.host = argc == 2 ? argv[1] : "";
  auto client = cli::Client::Open(endpoint);
  if (argc != 2 || !client.ok()) {
    std::fprintf(stderr, "start_requests HOST: %s\n", client.status().ToString().c_str());
    return 2;
  }
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json answer = {{"asked", Now()}};
    if (absl::Status status = Ask(**client, line, answer); !status.ok())
      answer["error"] = std::string(status.message());
    std::cout << answer.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace rekindle

int main(int argc, char** argv) { return rekindle::Main(argc, argv); }
