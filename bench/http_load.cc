// Invokes a function over HTTP at a fixed rate (open loop: the clock says when a request is due, not the
// answer to the one before) and prints the latencies as JSON. A latency counts from when its request was due.
//
//   http_load ADDRESS [--function NAME] [--payload JSON] [--connections 8] [--rate 500] [--seconds 10]
//
// ADDRESS is HOST:PORT, an IPv4 address, or the path of a Unix socket.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

using Clock = std::chrono::steady_clock;

absl::StatusOr<UniqueFd> Connect(const std::string& address) {
  sockaddr_storage storage{};
  socklen_t size;
  size_t colon = address.rfind(':');
  if (absl::StrContains(address, '/')) {
    auto& local = reinterpret_cast<sockaddr_un&>(storage);
    local.sun_family = AF_UNIX;
    address.copy(local.sun_path, sizeof local.sun_path - 1);
    size = sizeof local;
  } else {
    auto& ip = reinterpret_cast<sockaddr_in&>(storage);
    uint32_t port = 0;
    ip.sin_family = AF_INET;
    if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
        ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &ip.sin_addr) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(address, " is neither IP:PORT nor a path with a /"));
    }
    ip.sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof ip;
  }
  UniqueFd socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&storage), size) != 0) {
    return ErrnoStatus(errno, absl::StrCat("connecting to ", address));
  }
  int one = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return socket;
}

// One request and its answer; whether the function answered without an error.
absl::StatusOr<bool> Ask(int socket, const std::string& request, std::string& answer) {
  if (::send(socket, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return ErrnoStatus(errno, "sending a request");
  }
  answer.clear();
  size_t end = std::string::npos, length = 0;
  while (end == std::string::npos || answer.size() < end + 4 + length) {
    char piece[65536];
    ssize_t got = ::recv(socket, piece, sizeof piece, 0);
    if (got < 0) return ErrnoStatus(errno, "reading an answer");
    if (got == 0) return absl::UnavailableError("the connection was closed within an answer");
    answer.append(piece, static_cast<size_t>(got));
    if (end != std::string::npos) continue;
    end = answer.find("\r\n\r\n");
    if (end == std::string::npos) continue;
    size_t at = answer.find("Content-Length: ");
    if (at < end) length = std::strtoul(answer.c_str() + at + strlen("Content-Length: "), nullptr, 10);
  }
  return absl::StartsWith(answer, "HTTP/1.1 200 ") && answer.find("X-Amz-Function-Error") > end;
}

struct Load {
  std::string address, function = "tested", payload = "{}";
  int connections = 8;
  double rate = 500, seconds = 10;
};

struct Measured {
  std::vector<double> microseconds;
  size_t errors = 0;
  std::string problem;
};

// Every `connections`th request, from the `first`.
void Run(const Load& load, Clock::time_point start, int first, Measured& measured) {
  auto socket = Connect(load.address);
  if (!socket.ok()) {
    measured.problem = std::string(socket.status().message());
    return;
  }
  std::string request =
      absl::StrCat("POST /2015-03-31/functions/", load.function,
                   "/invocations HTTP/1.1\r\nHost: rekindle\r\nContent-Length: ", load.payload.size(),
                   "\r\n\r\n", load.payload);
  std::string answer;
  auto requests = static_cast<int>(load.rate * load.seconds);
  for (int i = first; i < requests; i += load.connections) {
    auto due =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(i / load.rate));
    std::this_thread::sleep_until(due);
    absl::StatusOr<bool> good = Ask(socket->get(), request, answer);
    if (!good.ok()) {
      measured.problem = std::string(good.status().message());
      return;
    }
    measured.errors += !*good;
    measured.microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - due).count());
  }
}

int Main(int argc, char** argv) {
  Load load;
  CLI::App app("Invokes a function over HTTP at a fixed rate");
  app.add_option("address", load.address)->required();
  app.add_option("--function", load.function)->capture_default_str();
  app.add_option("--payload", load.payload)->capture_default_str();
  app.add_option("--connections", load.connections)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--rate", load.rate, "requests a second")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--seconds", load.seconds)->capture_default_str()->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  std::vector<Measured> measured(static_cast<size_t>(load.connections));
  std::vector<std::thread> threads;
  Clock::time_point start = Clock::now() + std::chrono::milliseconds(50);
  for (int i = 0; i < load.connections; ++i) {
    threads.emplace_back([&, i] { Run(load, start, i, measured[static_cast<size_t>(i)]); });
  }
  for (std::thread& thread : threads) thread.join();

  Measured all;
  for (const Measured& one : measured) {
    if (!one.problem.empty()) {
      std::fprintf(stderr, "http_load: %s\n", one.problem.c_str());
      return 1;
    }
    all.microseconds.insert(all.microseconds.end(), one.microseconds.begin(), one.microseconds.end());
    all.errors += one.errors;
  }
  std::vector<double>& sorted = all.microseconds;
  if (sorted.empty()) return 1;
  std::sort(sorted.begin(), sorted.end());
  auto quantile = [&](double q) {
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
  };
  std::printf(
      "{\"requests\": %zu, \"errors\": %zu, \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, "
      "\"p999_us\": %.1f, \"max_us\": %.1f}\n",
      sorted.size(), all.errors, quantile(0.5), quantile(0.9), quantile(0.99), quantile(0.999),
      sorted.back());
  return 0;
}

}  // namespace
}  // namespace rekindle

int main(int argc, char** argv) { return rekindle::Main(argc, argv); }
