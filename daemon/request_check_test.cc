#include "daemon/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "rekindle/v1/group.pb.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void ExpectRefused(const google::protobuf::Message& request, const std::string& field) {
  const absl::Status status = CheckRequest(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << request.ShortDebugString();
  EXPECT_THAT(std::string(status.message()), HasSubstr("'" + field + "'"));
}

TEST(RequestCheckTest, TakesWhatIsInOrder) {
  v1::RestoreRequest restore;
  EXPECT_TRUE(CheckRequest(restore).ok());
  restore.set_image("é:1");
  restore.mutable_clone()->set_network(v1::CloneOptions::OWN);
  restore.mutable_clone()->set_cpus(0.5);
  (*restore.mutable_clone()->mutable_environment())["NAME"] = "";
  restore.mutable_rollback()->set_mode(v1::Rollback::ALL);
  EXPECT_TRUE(CheckRequest(restore).ok());
  v1::RunRequest run;
  run.add_argv("/bin/true");
  run.add_argv("\xff\xfe");
  EXPECT_TRUE(CheckRequest(run).ok());
}

TEST(RequestCheckTest, EnumsThatThisVersionDoesNotKnow) {
  v1::RestoreRequest network, fill, mode;
  network.mutable_clone()->set_network(static_cast<v1::CloneOptions::Network>(77));
  ExpectRefused(network, "network");
  fill.mutable_clone()->set_fill(static_cast<v1::CloneOptions::Fill>(-1));
  ExpectRefused(fill, "fill");
  mode.mutable_rollback()->set_mode(static_cast<v1::Rollback::Mode>(77));
  ExpectRefused(mode, "mode");
  v1::RunRequest run;
  *run.mutable_supervision()->mutable_rollback() = mode.rollback();
  ExpectRefused(run, "mode");
  v1::SettlePartRequest settle;
  settle.set_action(static_cast<v1::SettlePartRequest::Action>(4));
  ExpectRefused(settle, "action");
}

TEST(RequestCheckTest, NumbersThatAreNone) {
  for (const double number :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    v1::RestoreRequest restore;
    restore.mutable_clone()->set_cpus(number);
    ExpectRefused(restore, "cpus");
    v1::StopJobRequest stop;
    stop.set_grace_seconds(number);
    ExpectRefused(stop, "grace_seconds");
  }
}

TEST(RequestCheckTest, NegativeTimes) {
  v1::LeaseGpuRequest lease;
  lease.set_timeout_seconds(-1);
  ExpectRefused(lease, "timeout_seconds");
  lease.set_timeout_seconds(0.5);
  EXPECT_TRUE(CheckRequest(lease).ok());
  v1::RunRequest run;
  run.mutable_supervision()->set_hang_seconds(-0.5);
  ExpectRefused(run, "hang_seconds");
}

TEST(RequestCheckTest, NegativeTimesInNanoseconds) {
  v1::FunctionLogsRequest logs;
  logs.set_since_unix_ns(-1);
  ExpectRefused(logs, "since_unix_ns");
  logs.set_since_unix_ns(1);
  EXPECT_TRUE(CheckRequest(logs).ok());
}

TEST(RequestCheckTest, NulBytes) {
  const std::string nul("/tmp/a\0b", 8);
  v1::RunRequest argv, folder, variable, log;
  argv.add_argv("/bin/true");
  argv.add_argv(nul);
  ExpectRefused(argv, "argv");
  folder.set_working_directory(nul);
  ExpectRefused(folder, "working_directory");
  variable.add_environment(nul);
  ExpectRefused(variable, "environment");
  log.set_log(nul);
  ExpectRefused(log, "log");
  v1::RestoreRequest pidfile, bind, value;
  pidfile.set_pidfile(nul);
  ExpectRefused(pidfile, "pidfile");
  bind.mutable_clone()->add_binds()->set_to(nul);
  ExpectRefused(bind, "to");
  (*value.mutable_clone()->mutable_environment())["NAME"] = nul;
  ExpectRefused(value, "value");
  v1::DeployFunctionRequest function;
  function.mutable_spec()->set_code(nul);
  ExpectRefused(function, "code");
}

TEST(RequestCheckTest, AnEventOfAFunctionIsAnything) {
  v1::InvokeFunctionRequest invoke;
  invoke.set_name("f");
  invoke.set_payload(std::string("\0\xff", 2));
  EXPECT_TRUE(CheckRequest(invoke).ok());
}

// What a newer client asked for in a field that was passed over would not be done.
TEST(RequestCheckTest, AFieldOfANewerClientIsRefusedWhereverItIs) {
  v1::RestoreRequest restore;
  restore.GetReflection()->MutableUnknownFields(&restore)->AddVarint(4711, 1);
  const absl::Status status = CheckRequest(restore);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("field 4711 of rekindle.v1.RestoreRequest"), HasSubstr("bring the daemon up")));

  v1::RestoreRequest inner;
  v1::Rollback* rollback = inner.mutable_rollback();
  rollback->GetReflection()->MutableUnknownFields(rollback)->AddLengthDelimited(99, "x");
  // As it comes over the wire.
  v1::RestoreRequest received;
  ASSERT_TRUE(received.ParseFromString(inner.SerializeAsString()));
  EXPECT_THAT(std::string(CheckRequest(received).message()), HasSubstr("field 99 of rekindle.v1.Rollback"));
}

}  // namespace
}  // namespace rekindle::daemon
