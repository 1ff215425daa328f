"""Requests that create, change, list and delete users and ACLs (3001 to 3010), with RocketMQ's texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skylark.auth.model import Acl, AclEntry, Resource, User, merged, parse_actions
from skylark.auth.store import (
    CUSTOM,
    DEFAULT,
    DISABLED,
    ENABLED,
    SUPER,
    USERS_MAX,
    AuthStore,
    acl_info,
    user_info,
    username_of,
)
from skylark.errors import BrokerError
from skylark.protocol.bodies import AclInfo, Policy, PolicyEntry, UserInfo, encode_body
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests import REQUESTS
from skylark.protocol.requests.admin import (
    AuthCreateAcl,
    AuthCreateUser,
    AuthDeleteAcl,
    AuthDeleteUser,
    AuthGetAcl,
    AuthGetUser,
    AuthListAcl,
    AuthListUser,
    AuthUpdateAcl,
    AuthUpdateUser,
)
from skylark.protocol.signature import ACCESS_KEY
from skylark.settings.auth import AuthSettings

ANY_ACTION = "any"
CHANGES = (
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
)
READS = (
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
)


def _refused(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.NO_PERMISSION, remark)


def _error(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.SYSTEM_ERROR, remark)


class UserAdministration:
    """Changes and lists users and ACLs. Loop thread. All methods raise BrokerError.

    `operator` is the user who asks, empty while authentication is off: then everybody counts as a super user,
    but secrets are never returned.
    """

    def __init__(self, store: AuthStore, settings: AuthSettings) -> None:
        self.store = store
        self._settings = settings

    def operator(self, fields: Mapping[str, str]) -> str:
        """Return the user of an admitted request; empty while names are not checked."""
        return fields.get(ACCESS_KEY, "").strip() if self._settings.enabled else ""

    def reply(self, command: RemotingCommand) -> RemotingCommand:
        """Carry out an admitted request of CHANGES or READS. The caller saves what has changed."""
        request = REQUESTS[RequestCode(command.code)].from_command(command)
        operator = self.operator(command.fields)
        if command.code in CHANGES:
            self.change(request, operator)
            return command.reply()
        found = self.read(request, operator)
        return command.reply(body=encode_body(found) if found else b"")

    def change(self, request: Request[Any], operator: str) -> None:
        """Carry out a request that changes users or ACLs."""
        self.check_served()
        if isinstance(request, AuthCreateUser):
            self._create_user(request, operator)
        elif isinstance(request, AuthUpdateUser):
            self._update_user(request, operator)
        elif isinstance(request, AuthDeleteUser):
            self._delete_user(request, operator)
        elif isinstance(request, AuthDeleteAcl):
            self._delete_acl(request)
        else:
            assert isinstance(request, AuthCreateAcl | AuthUpdateAcl)
            self._change_acl(request)

    def read(
        self, request: Request[Any], operator: str
    ) -> UserInfo | list[UserInfo] | AclInfo | list[AclInfo] | None:
        """Return what a request asks for; None or an empty list if there is nothing."""
        self.check_served()
        if isinstance(request, AuthGetUser):
            return self._get_user(request, operator)
        if isinstance(request, AuthListUser):
            return self._list_users(request, operator)
        if isinstance(request, AuthGetAcl):
            return self._get_acl(request)
        assert isinstance(request, AuthListAcl)
        return self._list_acls(request)

    # --- Users ---

    def _create_user(self, request: AuthCreateUser, operator: str) -> None:
        info, name = request.body or UserInfo(), _given_name(request.username)
        if not (info.password or "").strip():
            raise _refused("password can not be blank")
        is_super = _is_super(info.user_type)
        if is_super and not self._is_super(operator):
            raise _error("The super user can only be create by super user")
        if self.store.user(name) is not None:
            raise _refused("The user is existed")
        if len(self.store.users()) >= USERS_MAX:
            raise _error(f"there are {USERS_MAX} users already, which is the limit")
        assert info.password is not None
        self._check_secret(info.password)
        self.store.put_user(User(name, info.password, is_super, _is_enabled(info.user_status)))

    def _update_user(self, request: AuthUpdateUser, operator: str) -> None:
        """Change what the body gives."""
        info, name = request.body or UserInfo(), _given_name(request.username)
        if _is_super(info.user_type) and not self._is_super(operator):
            raise _error("The super user can only be update by super user")
        user = self.store.user(name)
        if user is None:
            raise _refused("The user is not exist")
        self._check_operator(user, operator)
        if (info.password or "").strip():
            assert info.password is not None
            self._check_secret(info.password)
            user = replace(user, secret=info.password)
        if info.user_type:
            user = replace(user, is_super=_is_super(info.user_type))
        if info.user_status:
            user = replace(user, is_enabled=_is_enabled(info.user_status))
        self.store.put_user(user)

    def _check_secret(self, secret: str) -> None:
        least = self._settings.secret_chars_min
        if len(secret) < least:
            raise _refused(f"the password has {len(secret)} characters; use at least {least}")

    def _delete_user(self, request: AuthDeleteUser, operator: str) -> None:
        user = self.store.user(request.username or "")
        if user is not None:
            self._check_operator(user, operator)
            self.store.remove_user(user.name)

    def _get_user(self, request: AuthGetUser, operator: str) -> UserInfo | None:
        user = self.store.user(_given_name(request.username))
        return None if user is None else user_info(user, with_secret=self._sees_secrets(operator))

    def _list_users(self, request: AuthListUser, operator: str) -> list[UserInfo]:
        wanted, with_secret = request.filter or "", self._sees_secrets(operator)
        return [
            user_info(user, with_secret=with_secret) for user in self.store.users() if wanted in user.name
        ]

    # --- ACLs ---

    def _change_acl(self, request: AuthCreateAcl | AuthUpdateAcl) -> None:
        """Add entries; those of the same resource are replaced."""
        info = request.body or AclInfo()
        subject = info.subject or request.subject
        name = username_of(subject)
        changes = _checked_entries(info)
        if not name or self.store.user(name) is None:
            raise _refused(f"The subject of {subject} is not exist.")
        acl = self.store.acl(name) or Acl(name)
        self.store.put_acl(
            Acl(name, merged(acl.custom, changes[CUSTOM]), merged(acl.default, changes[DEFAULT]))
        )

    def _delete_acl(self, request: AuthDeleteAcl) -> None:
        """Remove the entry of a resource, or the whole ACL."""
        name = username_of(request.subject)
        if not name or self.store.user(name) is None:
            raise _refused("The subject is not exist.")
        acl = self.store.acl(name)
        if acl is None:
            raise _refused("The acl is not exist.")
        if not (request.resource or "").strip():
            self.store.put_acl(Acl(name))
            return
        resource = Resource.parse(request.resource or "")
        if resource is None:
            raise _refused("The resource is null.")
        if _is_default(request.policy_type):
            acl = replace(acl, default=_without(acl.default, resource))
        else:
            acl = replace(acl, custom=_without(acl.custom, resource))
        self.store.put_acl(acl)

    def _get_acl(self, request: AuthGetAcl) -> AclInfo | None:
        acl = self.store.acl(username_of(request.subject))
        return None if acl is None else acl_info(acl)

    def _list_acls(self, request: AuthListAcl) -> list[AclInfo]:
        """Return the ACLs whose subject contains one text and whose entries' resources contain another."""
        found = [
            _narrowed(acl_info(acl), request.resource_filter or "")
            for acl in self.store.acls()
            if (request.subject_filter or "") in f"User:{acl.username}"
        ]
        return [info for info in found if info.policies]

    # --- Operators ---

    def check_served(self) -> None:
        if not self._settings.is_served:
            raise _error(
                "users are not served here; set authenticationEnabled or authenticationMetadataProvider"
            )

    def _is_super(self, operator: str) -> bool:
        user = self.store.user(operator)
        return not operator or (user is not None and user.is_super)

    def _sees_secrets(self, operator: str) -> bool:
        return bool(operator) and self._is_super(operator)

    def _check_operator(self, user: User, operator: str) -> None:
        if user.is_super and not self._is_super(operator):
            raise _refused("The super user can only be update by super user")


def _given_name(name: str | None) -> str:
    if not (name or "").strip():
        raise BrokerError.for_code(ResponseCode.INVALID_PARAMETER, "The username is blank")
    assert name is not None
    return name


def _is_super(user_type: str | None) -> bool:
    return (user_type or "").lower() == SUPER.lower()


def _is_enabled(status: str | None) -> bool:
    return (status or ENABLED).lower() != DISABLED


def _is_default(policy_type: str | None) -> bool:
    return (policy_type or "").lower() == DEFAULT.lower()


def _without(entries: tuple[AclEntry, ...], resource: Resource) -> tuple[AclEntry, ...]:
    return tuple(entry for entry in entries if entry.resource != resource)


def _narrowed(info: AclInfo, resource_filter: str) -> AclInfo:
    policies = [
        Policy(
            policy.policy_type, [each for each in policy.entries if resource_filter in (each.resource or "")]
        )
        for policy in info.policies
    ]
    return AclInfo(info.subject, [policy for policy in policies if policy.entries])


def _checked_entries(info: AclInfo) -> dict[str, list[AclEntry]]:
    """Return the entries of a body by the kind of their policy. Raises BrokerError 16 for an invalid one."""
    if not info.policies:
        raise _refused("The policies is empty.")
    entries: dict[str, list[AclEntry]] = {CUSTOM: [], DEFAULT: []}
    for policy in info.policies:
        if not policy.entries:
            raise _refused("The policy entries is empty.")
        kind = DEFAULT if _is_default(policy.policy_type) else CUSTOM
        entries[kind] += map(_checked_entry, policy.entries)
    return entries


def _checked_entry(info: PolicyEntry) -> AclEntry:
    resource = Resource.parse(info.resource or "")
    if resource is None:
        raise _refused("The resource is null.")
    if any(word.lower() == ANY_ACTION for word in info.actions):
        raise _refused("The actions can not be Any.")
    actions = parse_actions(info.actions)
    if not actions:
        raise _refused("The actions is empty.")
    sources = tuple(source.strip() for source in info.source_ips or ())
    if not all(sources):
        raise _refused("The source ip is empty.")
    decision = (info.decision or "").lower()
    if decision not in ("allow", "deny"):
        raise _refused("The decision is null or illegal.")
    try:
        return AclEntry(resource, actions, decision == "allow", sources)
    except ValueError:
        raise _refused("The source ip is invalid.") from None
