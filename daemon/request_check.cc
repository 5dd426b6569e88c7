#include "daemon/request_check.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Any bytes, which no kernel call takes.
bool IsPayload(const FieldDescriptor& field) {
  return field.full_name() == "rekindle.v1.InvokeFunctionRequest.payload";
}

absl::Status CheckEnum(const FieldDescriptor& field, int value) {
  const EnumDescriptor& type = *field.enum_type();
  if (type.FindValueByNumber(value) != nullptr) return absl::OkStatus();
  std::string known;
  for (int i = 0; i < type.value_count(); ++i) {
    absl::StrAppend(&known, i > 0 ? ", " : "", type.value(i)->name(), " (", type.value(i)->number(), ")");
  }
  return absl::InvalidArgumentError(absl::StrCat("'", field.name(), "' of the request is ", value,
                                                 ", which this version does not know: give one of ", known,
                                                 ", or bring the daemon up to the client's version"));
}

absl::Status CheckNumber(const FieldDescriptor& field, double value) {
  if (!std::isfinite(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", field.name(), "' of the request is ", value, ": give a finite number"));
  }
  if (value < 0 && absl::EndsWith(field.name(), "_seconds")) {
    return absl::InvalidArgumentError(absl::StrCat("'", field.name(), "' of the request is ", value,
                                                   ": no time is negative; leave it out for the default"));
  }
  return absl::OkStatus();
}

absl::Status CheckTime(const FieldDescriptor& field, int64_t value) {
  if (value >= 0 || !absl::EndsWith(field.name(), "_ns")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", field.name(), "' of the request is ", value,
                                                 ": no time is negative; leave it out for the default"));
}

absl::Status CheckBytes(const FieldDescriptor& field, absl::string_view bytes) {
  const size_t nul = bytes.find('\0');
  if (nul == absl::string_view::npos || IsPayload(field)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", field.name(), "' of the request has a NUL byte behind '", bytes.substr(0, nul),
                   "': no path, argument, variable or name can have one, leave it out"));
}

absl::Status CheckField(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& from = *message.GetReflection();
  const bool repeated = field.is_repeated();
  std::string scratch;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return CheckRequest(repeated ? from.GetRepeatedMessage(message, &field, index)
                                   : from.GetMessage(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return CheckEnum(field, repeated ? from.GetRepeatedEnumValue(message, &field, index)
                                       : from.GetEnumValue(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckNumber(
          field, repeated ? from.GetRepeatedDouble(message, &field, index) : from.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return CheckNumber(
          field, repeated ? from.GetRepeatedFloat(message, &field, index) : from.GetFloat(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return CheckBytes(field, repeated ? from.GetRepeatedStringReference(message, &field, index, &scratch)
                                        : from.GetStringReference(message, &field, &scratch));
    case FieldDescriptor::CPPTYPE_INT64:
      return CheckTime(
          field, repeated ? from.GetRepeatedInt64(message, &field, index) : from.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_BOOL:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status CheckNoUnknownFields(const Message& message) {
  const google::protobuf::UnknownFieldSet& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the request has field ", unknown.field(0).number(), " of ", message.GetTypeName(),
      ", which this version does not know: bring the daemon up to the client's version, or leave "
      "out the option that is new"));
}

}  // namespace

absl::Status CheckRequest(const Message& request) {
  // The first look at what a message consists of takes milliseconds, for all messages of its file: as long as
  // all else that a short command does.
  if (request.ByteSizeLong() == 0) return absl::OkStatus();
  RK_RETURN_IF_ERROR(CheckNoUnknownFields(request));
  std::vector<const FieldDescriptor*> fields;
  request.GetReflection()->ListFields(request, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? request.GetReflection()->FieldSize(request, field) : 1;
    for (int i = 0; i < count; ++i) RK_RETURN_IF_ERROR(CheckField(request, *field, i));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
