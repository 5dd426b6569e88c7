// The commands against a service that answers what the test wants: what they print.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "base/error_cause.h"
#include "base/file.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "daemon/told_by_daemon.h"
#include "daemon/version.h"
#include "rekindle/v1/rekindle.grpc.pb.h"

namespace rekindle::cli {
namespace {

using ::testing::HasSubstr;

class VersionService final : public v1::Rekindle::Service {
 public:
  explicit VersionService(std::string version) : version_(std::move(version)) {}
  grpc::Status GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*,
                          v1::GetVersionResponse* response) override {
    response->set_version(version_);
    response->set_daemon(true);
    response->set_store("/var/lib/rekindle");
    return grpc::Status::OK;
  }

 private:
  const std::string version_;
};

// A daemon that is nothing but this service, at `host`.
std::unique_ptr<grpc::Server> Serve(grpc::Service& service, const std::string& host) {
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  builder.AddListeningPort(host, grpc::InsecureServerCredentials());
  return builder.BuildAndStart();
}

// What `rekindle version` shows of a daemon of that version: its output, and its warnings.
std::pair<std::string, std::string> ShownOf(const std::string& version) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-version-").value();
  VersionService service(version);
  Endpoint endpoint;
  endpoint.host = "unix:" + folder.path() + "/socket";
  const std::unique_ptr<grpc::Server> server = Serve(service, endpoint.host);
  const std::unique_ptr<Client> client = Client::Open(endpoint).value();
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(GetVersion(*client, Output(false, false), {}), kDone);
  server->Shutdown();
  const std::string out = ::testing::internal::GetCapturedStdout();
  return {out, ::testing::internal::GetCapturedStderr()};
}

TEST(VersionTest, ADaemonOfAnotherVersionIsToldOf) {
  const auto [out, warnings] = ShownOf("0.0.7");
  EXPECT_THAT(out, HasSubstr(std::string("rekindle ") + daemon::kVersion));
  EXPECT_THAT(out, HasSubstr("rekindled 0.0.7"));
  EXPECT_THAT(warnings, HasSubstr("version 0.0.7"));
  EXPECT_EQ(ShownOf(daemon::kVersion).second, "");
}

// The end of a call in the middle of which the daemon ends, in the words that gRPC has for it.
// Knows no call but its version.
TEST(ClientTest, ADaemonThatDoesNotKnowTheCallIsOlder) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-older-").value();
  VersionService service("0.0.1");
  Endpoint endpoint;
  endpoint.host = "unix:" + folder.path() + "/socket";
  const std::unique_ptr<grpc::Server> server = Serve(service, endpoint.host);
  const std::unique_ptr<Client> client = Client::Open(endpoint).value();
  for (const absl::Status& told :
       {client->GetStats({}).status(), client->Fsck({}, [](const v1::FsckEvent&) {})}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(told)) << told;
    EXPECT_THAT(std::string(told.message()), HasSubstr("older version"));
  }
  server->Shutdown();
}

class EndingService final : public v1::Rekindle::Service {
 public:
  explicit EndingService(grpc::Status end, bool tells = false) : end_(std::move(end)), tells_(tells) {}
  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest*,
                          v1::GetVersionResponse*) override {
    if (tells_) context->AddTrailingMetadata(daemon::kToldByDaemonMetadata, "1");
    return end_;
  }

 private:
  const grpc::Status end_;
  const bool tells_;
};

TEST(ClientTest, ThatTheDaemonHasEndedIsSaid) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-ending-").value();
  for (const grpc::Status& end : {grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED"),
                                  grpc::Status(grpc::StatusCode::UNAVAILABLE, "Cancelling all calls"),
                                  grpc::Status(grpc::StatusCode::CANCELLED, "given up for another")}) {
    EndingService service(end);
    Endpoint endpoint;
    endpoint.host = "unix:" + folder.path() + "/socket";
    const std::unique_ptr<grpc::Server> server = Serve(service, endpoint.host);
    const absl::Status told = Client::Open(endpoint).value()->GetVersion({}).status();
    server->Shutdown();
    if (end.error_message() == "given up for another") {
      EXPECT_EQ(told, absl::CancelledError(end.error_message()));
    } else {
      EXPECT_TRUE(absl::IsUnavailable(told)) << told;
      EXPECT_THAT(std::string(told.message()), HasSubstr("has ended"));
    }
  }
}

// gRPC says "unavailable" where no daemon was reached.
TEST(ClientTest, WhatTheDaemonHasNotIsNotTakenForItsAbsence) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-away-").value();
  for (const bool tells : {true, false}) {
    EndingService service(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the store is away"), tells);
    Endpoint endpoint;
    endpoint.host = "unix:" + folder.path() + "/socket";
    const std::unique_ptr<grpc::Server> server = Serve(service, endpoint.host);
    const absl::Status told = Client::Open(endpoint).value()->GetVersion({}).status();
    server->Shutdown();
    EXPECT_TRUE(absl::IsUnavailable(told)) << told;
    if (tells) {
      EXPECT_EQ(told.message(), "the store is away");
    } else {
      EXPECT_THAT(std::string(told.message()), HasSubstr("no answer from the daemon"));
    }
  }
}

// Fails as `status`; a daemon of before the causes has its message alone.
class FailingService final : public v1::Rekindle::Service {
 public:
  FailingService(absl::Status status, bool older) : status_(std::move(status)), older_(older) {}
  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest*,
                          v1::GetVersionResponse*) override {
    context->AddTrailingMetadata(daemon::kToldByDaemonMetadata, older_ ? "1" : daemon::kTellsCauses);
    if (!older_) daemon::TellCause(status_, context);
    return grpc::Status(static_cast<grpc::StatusCode>(status_.code()), std::string(status_.message()));
  }

 private:
  const absl::Status status_;
  const bool older_;
};

TEST(ClientTest, WhatAnErrorWasMadeOfIsToldBesideItsMessage) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-cause-").value();
  const auto told = [&](const absl::Status& status, bool older) {
    FailingService service(status, older);
    Endpoint endpoint;
    endpoint.host = "unix:" + folder.path() + "/socket";
    const std::unique_ptr<grpc::Server> server = Serve(service, endpoint.host);
    absl::Status got = Client::Open(endpoint).value()->GetVersion({}).status();
    server->Shutdown();
    return got;
  };
  const absl::Status empty = told(WithCause(absl::NotFoundError("nothing"), kCauseEmptyFolder), false);
  EXPECT_EQ(CauseOf(empty), kCauseEmptyFolder);
  EXPECT_EQ(ExitCodeFor(empty), ExitCode::kNoStore);
  EXPECT_EQ(ErrnoOf(told(ErrnoStatus(ENOENT, "opening /x"), false)), ENOENT);
  const absl::Status words =
      absl::NotFoundError("there is no store at /x yet, the folder is empty: see to it");
  EXPECT_EQ(ExitCodeFor(told(words, false)), kNotFound);
  EXPECT_EQ(CauseOf(told(words, true)), kCauseEmptyFolder);
  EXPECT_EQ(ErrnoOf(told(absl::NotFoundError("opening /x: No such file or directory"), true)), ENOENT);
}

}  // namespace
}  // namespace rekindle::cli
