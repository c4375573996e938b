#!/bin/sh
set -eu
# A home on a shared file system is made at the first login.
echo 'session optional pam_mkhomedir.so umask=0077' >>etc/pam.d/common-session
